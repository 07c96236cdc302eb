#include "client/plan_views/step_chart.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/plan/dependencies.h"

namespace esteira {
namespace {

Activity ActivityOf(Op op) {
  switch (op) {
    case Op::kForward: return Activity::kForward;
    case Op::kBackward: return Activity::kBackward;
    case Op::kBackwardInput: return Activity::kBackwardInput;
    case Op::kBackwardWeight: return Activity::kBackwardWeight;
    case Op::kRecompute: return Activity::kRecompute;
    default: return Activity::kUpdate;
  }
}

bool CanBeHidden(Op op) {
  return op == Op::kGather || op == Op::kReduce || op == Op::kTieParameter;
}

// The chunk of a unit among those of its stage.
class ChunkOrdinals {
 public:
  ChunkOrdinals(const Layout& layout, const Program& program) : boundaries_(layout.boundaries) {
    for (int unit : program.units) {
      const int chunk = ChunkOf(unit);
      if (chunk < 0 || (!chunks_.empty() && chunks_.back() == chunk)) continue;
      chunks_.push_back(chunk);
    }
  }
  int Of(int unit) const {
    const auto found = std::find(chunks_.begin(), chunks_.end(), ChunkOf(unit));
    return static_cast<int>(found - chunks_.begin());
  }

 private:
  int ChunkOf(int unit) const {  // -1: a unit that never computes
    if (boundaries_.empty() || unit >= boundaries_.back()) return -1;
    const auto above = std::upper_bound(boundaries_.begin(), boundaries_.end(), unit);
    return static_cast<int>(above - boundaries_.begin()) - 1;
  }
  std::vector<int> boundaries_;
  std::vector<int> chunks_;
};

// Collects one row from the instructions of its compute queue, which come in order of time.
class RowMaker {
 public:
  RowMaker(const Plan& plan, const Program& program, const std::vector<Interval>& intervals)
      : program_(program), intervals_(intervals), chunks_(plan.layout, program) {
    waits_ = Dependencies(MakeUnits(plan.model), PlacementOf(plan.layout.zero), program);
    row_.stage = program.stage;
  }

  StageRow Make(double seconds) {
    double busy_until = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      const Interval& interval = intervals_[i];
      if (QueueOf(instruction.op) == Queue::kCompute) {
        AddIdle(i, busy_until);
        AddPiece(instruction, interval);
        busy_until = interval.end;
      } else if (interval.end > interval.start) {
        row_.transfers.push_back({instruction.op, interval.start, interval.end});
      }
    }
    AddEnd(busy_until, seconds);
    AddRatios(seconds);
    return std::move(row_);
  }

 private:
  // The time since the queue was last busy, by what instruction `i` waited for: other stages first,
  // and communication where it took longer than those.
  void AddIdle(size_t i, double busy_until) {
    std::vector<std::pair<bool, size_t>> waits;  // can be hidden, index
    for (int32_t wait : waits_[i]) {
      const auto w = static_cast<size_t>(wait);
      waits.emplace_back(CanBeHidden(program_.instructions[w].op), w);
    }
    std::sort(waits.begin(), waits.end(), [&](const auto& a, const auto& b) {
      return std::make_pair(a.first, intervals_[a.second].end) <
             std::make_pair(b.first, intervals_[b.second].end);
    });
    double until = busy_until;
    for (const auto& [hideable, w] : waits) {
      const double end = std::min(intervals_[w].end, intervals_[i].start);
      if (end <= until) continue;
      PushIdle(hideable, until, end);
      until = end;
    }
    if (until < intervals_[i].start) PushIdle(false, until, intervals_[i].start);
  }

  // After the last compute instruction the rank waits for what ends last on it, then for others.
  void AddEnd(double busy_until, double seconds) {
    double end = busy_until;
    Op last = Op::kNorm;
    for (size_t i = 0; i < intervals_.size(); ++i) {
      if (intervals_[i].end < end || QueueOf(program_.instructions[i].op) == Queue::kCompute) {
        continue;
      }
      end = intervals_[i].end;
      last = program_.instructions[i].op;
    }
    if (end > busy_until) PushIdle(CanBeHidden(last), busy_until, end);
    if (seconds > end) PushIdle(false, end, seconds);
  }

  void PushIdle(bool communication, double start, double end) {
    const Idleness reason = communication ? Idleness::kCommunication : Idleness::kStages;
    if (!row_.idle.empty() && row_.idle.back().end >= start && row_.idle.back().reason == reason) {
      row_.idle.back().end = end;
    } else {
      row_.idle.push_back({reason, start, end});
    }
  }

  void AddPiece(const Instruction& instruction, const Interval& interval) {
    const Activity activity = ActivityOf(instruction.op);
    const int pass = IsCompute(instruction.op) ? PassOf(instruction, interval) : -1;
    if (!row_.pieces.empty()) {
      Piece& last = row_.pieces.back();
      if (last.activity == activity && last.pass == pass && last.end >= interval.start) {
        last.end = interval.end;
        return;
      }
    }
    if (interval.end > interval.start) {
      row_.pieces.push_back({activity, pass, interval.start, interval.end});
    }
  }

  // The pass that this instruction goes on with, or a new one. Recomputation belongs to the
  // backward pass that it is for.
  int PassOf(const Instruction& instruction, const Interval& interval) {
    const Activity activity = ActivityOf(instruction.op);
    const int chunk = chunks_.Of(instruction.unit);
    if (!row_.passes.empty()) {
      Pass& last = row_.passes.back();
      const bool same = last.chunk == chunk && last.micro_batch == instruction.micro_batch;
      const bool opens = last.activity == Activity::kRecompute && activity != Activity::kForward;
      const bool recomputes =
          activity == Activity::kRecompute &&
          (last.activity == Activity::kBackward || last.activity == Activity::kBackwardInput);
      if (same && (opens || recomputes || last.activity == activity)) {
        if (opens) last.activity = activity;
        last.end = interval.end;
        return static_cast<int>(row_.passes.size()) - 1;
      }
    }
    row_.passes.push_back({activity, chunk, instruction.micro_batch, interval.start, interval.end});
    return static_cast<int>(row_.passes.size()) - 1;
  }

  void AddRatios(double seconds) {
    if (seconds <= 0) return;
    for (const Piece& piece : row_.pieces) row_.busy += (piece.end - piece.start) / seconds;
    for (const Idle& idle : row_.idle) {
      double& share = idle.reason == Idleness::kStages ? row_.bubble : row_.exposed_communication;
      share += (idle.end - idle.start) / seconds;
    }
  }

  const Program& program_;
  const std::vector<Interval>& intervals_;
  ChunkOrdinals chunks_;
  std::vector<std::vector<int32_t>> waits_;
  StageRow row_;
};

// From the first forward instruction of a micro-batch on a chunk to its last backward one.
double HeldMicroBatches(const StageRow& row, int chunks_per_stage) {
  std::vector<std::pair<std::pair<int, int>, const Pass*>> passes;
  for (const Pass& pass : row.passes) passes.push_back({{pass.chunk, pass.micro_batch}, &pass});
  std::stable_sort(passes.begin(), passes.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<double, int>> events;  // time, change
  for (size_t i = 0; i < passes.size();) {
    size_t next = i;
    while (next < passes.size() && passes[next].first == passes[i].first) ++next;
    events.emplace_back(passes[i].second->start, 1);
    events.emplace_back(passes[next - 1].second->end, -1);
    i = next;
  }
  std::sort(events.begin(), events.end());  // at one time, ends come first
  int held = 0;
  int most = 0;
  for (const auto& [time, change] : events) most = std::max(most, held += change);
  return static_cast<double>(most) / chunks_per_stage;
}

}  // namespace

StepChart MakeStepChart(const Plan& plan, const Execution& execution) {
  StepChart chart;
  chart.seconds = execution.makespan;
  chart.chunks_per_stage = plan.layout.chunks_per_stage;
  for (size_t stage = 0; stage < plan.train.size(); ++stage) {
    StageRow row =
        RowMaker(plan, plan.train[stage], execution.intervals[stage]).Make(chart.seconds);
    row.held_micro_batches = HeldMicroBatches(row, chart.chunks_per_stage);
    chart.rows.push_back(std::move(row));
  }
  return chart;
}

namespace {

// Calls `add(column, seconds of it)` for each column that [start, end) touches.
template <typename Add>
void Spread(double start, double end, double column_seconds, int columns, const Add& add) {
  const int first = std::clamp(static_cast<int>(start / column_seconds), 0, columns - 1);
  for (int column = first; column < columns; ++column) {
    const double from = column * column_seconds;
    if (from >= end) return;
    add(static_cast<size_t>(column), std::min(end, from + column_seconds) - std::max(start, from));
  }
}

struct Coverage {
  std::array<double, kNumActivities> busy{};
  std::array<double, kNumActivities> longest{};  // one piece
  std::array<int, kNumActivities> pass{};        // of that piece
  std::array<double, 2> idle{};
};

// Chooses column by column: a piece that fills half of a column has it. Where pieces are shorter,
// an activity that a column has and does not show counts for more in the next one, so that
// activities come in the proportion of their times.
class Chooser {
 public:
  Column Choose(const Coverage& coverage) {
    const double exposed = coverage.idle[static_cast<size_t>(Idleness::kCommunication)];
    const double bubble = coverage.idle[static_cast<size_t>(Idleness::kStages)];
    const double busy = std::accumulate(coverage.busy.begin(), coverage.busy.end(), 0.0);
    if (exposed + bubble >= 2 * busy) {
      owed_.fill(0);
      Column column;
      column.kind = exposed > bubble ? Column::Kind::kExposed : Column::Kind::kBubble;
      return column;
    }
    const auto longest = std::max_element(coverage.longest.begin(), coverage.longest.end());
    if (2 * *longest >= busy + exposed + bubble) {
      owed_.fill(0);
      return Busy(coverage, static_cast<size_t>(longest - coverage.longest.begin()));
    }
    size_t chosen = kNumActivities;
    for (size_t a = 0; a < kNumActivities; ++a) {
      owed_[a] += coverage.busy[a];
      if (coverage.busy[a] <= 0) continue;
      if (chosen == kNumActivities || owed_[a] > owed_[chosen]) chosen = a;
    }
    owed_[chosen] -= busy;
    return Busy(coverage, chosen);
  }

 private:
  static Column Busy(const Coverage& coverage, size_t activity) {
    return {Column::Kind::kBusy, static_cast<Activity>(activity), coverage.pass[activity]};
  }

  std::array<double, kNumActivities> owed_{};  // seconds
};

}  // namespace

std::vector<Column> Rasterize(const StageRow& row, double seconds, int columns) {
  std::vector<Column> result(static_cast<size_t>(std::max(columns, 0)));
  if (result.empty() || seconds <= 0) return result;
  const double width = seconds / columns;
  std::vector<Coverage> coverage(result.size());
  for (const Piece& piece : row.pieces) {
    const auto a = static_cast<size_t>(piece.activity);
    Spread(piece.start, piece.end, width, columns, [&](size_t column, double covered) {
      coverage[column].busy[a] += covered;
      if (covered <= coverage[column].longest[a]) return;
      coverage[column].longest[a] = covered;
      coverage[column].pass[a] = piece.pass;
    });
  }
  for (const Idle& idle : row.idle) {
    const auto reason = static_cast<size_t>(idle.reason);
    Spread(idle.start, idle.end, width, columns,
           [&](size_t column, double covered) { coverage[column].idle[reason] += covered; });
  }
  Chooser chooser;
  std::transform(coverage.begin(), coverage.end(), result.begin(),
                 [&](const Coverage& column) { return chooser.Choose(column); });
  return result;
}

std::vector<int> Sample(int size, int count) {
  std::vector<int> sample;
  if (size <= count || count < 2) {
    for (int i = 0; i < std::min(size, std::max(count, 1)); ++i) sample.push_back(i);
    return sample;
  }
  for (int i = 0; i < count; ++i) {
    sample.push_back(static_cast<int>(int64_t{i} * (size - 1) / (count - 1)));
  }
  return sample;
}

}  // namespace esteira
