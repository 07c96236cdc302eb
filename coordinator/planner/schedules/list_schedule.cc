#include "coordinator/planner/schedules/list_schedule.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace esteira {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A moment at which a stage may be able to start something.
struct Moment {
  double time;
  int stage;
  bool operator>(const Moment& other) const {
    return std::tie(time, stage) > std::tie(other.time, other.stage);
  }
};

// What is known of one chunk.
struct ChunkState {
  int forward = 0;  // micro-batches of which F, I and W are placed
  int input = 0;
  int weight = 0;
  std::vector<double> forward_end, input_end;  // by micro-batch
};

class Lister {
 public:
  Lister(const PipelineShape& shape, const std::vector<int>& stage_of_chunk,
         const ChunkCosts& costs, const ListRule& rule)
      : shape_(shape),
        costs_(costs),
        rule_(rule),
        chunks_(stage_of_chunk.size()),
        chunks_of_stage_(static_cast<size_t>(shape.stages)),
        free_(static_cast<size_t>(shape.stages), 0),
        held_(static_cast<size_t>(shape.stages), 0),
        result_{stage_of_chunk, StageOps(static_cast<size_t>(shape.stages))} {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      chunks_[c].forward_end.assign(static_cast<size_t>(shape.micro_batches), kNever);
      chunks_[c].input_end = chunks_[c].forward_end;
      chunks_of_stage_[static_cast<size_t>(stage_of_chunk[c])].push_back(static_cast<int>(c));
    }
  }

  std::optional<PipelineOps> Run() {
    size_t left = chunks_.size() * static_cast<size_t>(shape_.micro_batches) * 3;
    for (int stage = 0; stage < shape_.stages; ++stage) moments_.push({0, stage});
    while (!moments_.empty()) {
      const Moment moment = moments_.top();
      moments_.pop();
      if (moment.time < free_[static_cast<size_t>(moment.stage)]) continue;
      const std::optional<ChunkOp> op = Choose(moment.stage, moment.time);
      if (!op.has_value()) continue;
      Start(*op, moment.stage, moment.time);
      --left;
    }
    if (left > 0) return std::nullopt;
    return std::move(result_);
  }

 private:
  ChunkState& At(int chunk) { return chunks_[static_cast<size_t>(chunk)]; }
  double Link(int chunk) const { return costs_.link_seconds[static_cast<size_t>(chunk)]; }
  double Bytes(int chunk) const { return costs_.bytes[static_cast<size_t>(chunk)]; }

  double ForwardReady(int chunk) {
    const ChunkState& state = At(chunk);
    if (state.forward == shape_.micro_batches) return kNever;
    if (chunk == 0) return 0;
    return At(chunk - 1).forward_end[static_cast<size_t>(state.forward)] + Link(chunk - 1);
  }
  double InputReady(int chunk) {
    const ChunkState& state = At(chunk);
    if (state.input == state.forward) return kNever;
    const auto j = static_cast<size_t>(state.input);
    if (chunk + 1 == static_cast<int>(chunks_.size())) return state.forward_end[j];
    return std::max(state.forward_end[j], At(chunk + 1).input_end[j] + Link(chunk));
  }

  // Whether F of a chunk may take memory: afterwards the stage's micro-batches must be able to end
  // one after the other, each taking what it still needs and giving back all that it has
  // (Dijkstra's banker). Then the schedule cannot get stuck, on whatever stage.
  bool HasMemory(int stage, int chunk) {
    if (costs_.budget_bytes.empty()) return true;
    const auto s = static_cast<size_t>(stage);
    ++At(chunk).forward;
    double free = costs_.budget_bytes[s] - held_[s] - Bytes(chunk);
    bool safe = free >= 0;
    int begin = shape_.micro_batches, end = 0;
    for (int mine : chunks_of_stage_[s]) {
      begin = std::min(begin, At(mine).weight);
      end = std::max(end, At(mine).forward);
    }
    for (int j = begin; safe && j < end; ++j) {
      double needs = 0, has = 0;
      for (int mine : chunks_of_stage_[s]) {
        if (At(mine).forward <= j) needs += Bytes(mine);
        if (At(mine).weight <= j && j < At(mine).forward) has += Bytes(mine);
      }
      safe = needs <= free;
      free += has;
    }
    --At(chunk).forward;
    return safe;
  }

  bool MayRunAhead(int stage, int chunk) {
    if (rule_.ahead < 0) return true;
    const ChunkState& state = At(chunk);
    return state.forward - state.input < shape_.stages - stage + rule_.ahead;
  }

  // The next F or I that could start, with the time at which it can; the chunk with the oldest
  // micro-batch first, and the later chunk of two.
  std::pair<double, ChunkOp> Earliest(int stage, Op op, double now) {
    std::pair<double, ChunkOp> best{kNever, {op, -1, 0}};
    const std::vector<int>& mine = chunks_of_stage_[static_cast<size_t>(stage)];
    for (auto chunk = mine.rbegin(); chunk != mine.rend(); ++chunk) {
      const bool forward = op == Op::kForward;
      if (forward && (!MayRunAhead(stage, *chunk) || !HasMemory(stage, *chunk))) continue;
      const double ready = std::max(now, forward ? ForwardReady(*chunk) : InputReady(*chunk));
      const int micro_batch = forward ? At(*chunk).forward : At(*chunk).input;
      if (ready < best.first ||
          (ready == best.first && ready < kNever && micro_batch < best.second.micro_batch)) {
        best = {ready, {op, *chunk, micro_batch}};
      }
    }
    return best;
  }

  std::optional<ChunkOp> PendingWeight(int stage) {
    std::optional<ChunkOp> oldest;
    for (int chunk : chunks_of_stage_[static_cast<size_t>(stage)]) {
      const ChunkState& state = At(chunk);
      if (state.weight == state.input) continue;
      if (oldest.has_value() && oldest->micro_batch <= state.weight) continue;
      oldest = ChunkOp{Op::kBackwardWeight, chunk, state.weight};
    }
    // Only what has ended: I runs on the same stage, so that is all of it.
    return oldest;
  }

  std::optional<ChunkOp> Choose(int stage, double now) {
    std::pair<double, ChunkOp> first = Earliest(stage, Op::kBackwardInput, now);
    std::pair<double, ChunkOp> second = Earliest(stage, Op::kForward, now);
    if (!rule_.backward_first) std::swap(first, second);
    if (first.first <= now) return first.second;
    if (second.first <= now) return second.second;
    const double next = std::min(first.first, second.first);
    const std::optional<ChunkOp> weight = PendingWeight(stage);
    const bool fits =
        weight.has_value() && now + rule_.weight_fit * costs_.Seconds(*weight) <= next;
    if (fits) return weight;
    if (next < kNever) moments_.push({next, stage});
    return std::nullopt;
  }

  void Start(const ChunkOp& op, int stage, double now) {
    const auto s = static_cast<size_t>(stage);
    const auto j = static_cast<size_t>(op.micro_batch);
    const double end = now + costs_.Seconds(op);
    ChunkState& state = At(op.chunk);
    result_.ops[s].push_back(op);
    free_[s] = end;
    moments_.push({end, stage});
    switch (op.op) {
      case Op::kForward:
        state.forward_end[j] = end;
        ++state.forward;
        held_[s] += Bytes(op.chunk);
        if (op.chunk + 1 < static_cast<int>(chunks_.size())) {
          Wake(op.chunk + 1, end + Link(op.chunk));
        }
        break;
      case Op::kBackwardInput:
        state.input_end[j] = end;
        ++state.input;
        if (op.chunk > 0) Wake(op.chunk - 1, end + Link(op.chunk - 1));
        break;
      default: ++state.weight; held_[s] -= Bytes(op.chunk);
    }
  }

  void Wake(int chunk, double time) {
    const int stage = result_.stage_of_chunk[static_cast<size_t>(chunk)];
    moments_.push({std::max(time, free_[static_cast<size_t>(stage)]), stage});
  }

  const PipelineShape shape_;
  const ChunkCosts& costs_;
  const ListRule rule_;
  std::vector<ChunkState> chunks_;
  std::vector<std::vector<int>> chunks_of_stage_;
  std::vector<double> free_, held_;  // by stage
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> moments_;
  PipelineOps result_;
};

// Whether two neighbouring passes of a stage may change places: not two of one micro-batch and
// chunk, and passes of one kind and chunk stay in order.
bool MayExchange(const ChunkOp& a, const ChunkOp& b) {
  if (a.chunk != b.chunk) return true;
  if (a.micro_batch == b.micro_batch) return false;
  const auto adds = [](Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; };
  const auto passes = [](Op op) { return op == Op::kBackward || op == Op::kBackwardInput; };
  return !(a.op == b.op || (adds(a.op) && adds(b.op)) || (passes(a.op) && passes(b.op)));
}

// Passes that start the moment the pass before them on their stage ends: of these the step's
// critical path is made, so an exchange helps there or nowhere. By time, the latest first.
std::vector<std::pair<size_t, size_t>> Tight(const PipelineTimes& times) {
  std::vector<std::pair<double, std::pair<size_t, size_t>>> found;
  for (size_t s = 0; s < times.intervals.size(); ++s) {
    for (size_t i = 1; i < times.intervals[s].size(); ++i) {
      const bool tight = times.intervals[s][i].first == times.intervals[s][i - 1].second;
      if (tight) found.push_back({times.intervals[s][i].first, {s, i}});
    }
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<std::pair<size_t, size_t>> places(found.size());
  for (size_t i = 0; i < found.size(); ++i) places[i] = found[i].second;
  return places;
}

PipelineOps MergeBackward(PipelineOps pipeline) {
  for (std::vector<ChunkOp>& ops : pipeline.ops) {
    std::vector<ChunkOp> merged;
    for (const ChunkOp& op : ops) {
      const bool completes = op.op == Op::kBackwardWeight && !merged.empty() &&
                             merged.back() == ChunkOp{Op::kBackwardInput, op.chunk, op.micro_batch};
      if (completes) {
        merged.back().op = Op::kBackward;
      } else {
        merged.push_back(op);
      }
    }
    ops = std::move(merged);
  }
  return pipeline;
}

}  // namespace

std::optional<PipelineOps> ListSchedule(const PipelineShape& shape,
                                        const std::vector<int>& stage_of_chunk,
                                        const ChunkCosts& costs, const ListRule& rule) {
  return Lister(shape, stage_of_chunk, costs, rule).Run();
}

PipelineOps Improve(PipelineOps pipeline, const ChunkCosts& costs, int tries) {
  std::optional<PipelineTimes> best = TimePipeline(pipeline, costs);
  for (bool improved = true; improved && tries > 0;) {
    improved = false;
    for (const auto& [s, i] : Tight(*best)) {
      std::vector<ChunkOp>& ops = pipeline.ops[s];
      if (!MayExchange(ops[i - 1], ops[i])) continue;
      if (--tries < 0) break;
      std::swap(ops[i - 1], ops[i]);
      std::optional<PipelineTimes> times = TimePipeline(pipeline, costs);
      const bool better = times.has_value() && FitsBudget(*times, costs) &&
                          times->makespan < best->makespan * (1 - 1e-9);
      if (better) {
        best = std::move(times);
        improved = true;
        break;
      }
      std::swap(ops[i - 1], ops[i]);
    }
  }
  const PipelineOps merged = MergeBackward(pipeline);
  const std::optional<PipelineTimes> times = TimePipeline(merged, costs);
  return times.has_value() && times->makespan <= best->makespan * (1 + 1e-9) ? merged : pipeline;
}

std::vector<PipelineOps> BestSchedules(const PipelineShape& shape,
                                       const std::vector<int>& stage_of_chunk,
                                       const ChunkCosts& costs,
                                       const std::vector<PipelineOps>& others, int count) {
  // Attempts whose time together stays within about a second.
  constexpr int kPassesTimed = 4'000'000;
  constexpr size_t kImproved = 5;
  std::vector<PipelineOps> candidates = others;
  for (int ahead : {0, 1, 2, shape.stages, -1}) {
    for (double weight_fit : {0.0, 0.5, 1.0}) {
      for (bool backward_first : {true, false}) {
        std::optional<PipelineOps> listed =
            ListSchedule(shape, stage_of_chunk, costs, {ahead, weight_fit, backward_first});
        if (listed.has_value()) candidates.push_back(*std::move(listed));
      }
    }
  }
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::optional<PipelineTimes> times = TimePipeline(candidates[i], costs);
    if (times.has_value() && FitsBudget(*times, costs)) order.emplace_back(times->makespan, i);
  }
  std::sort(order.begin(), order.end());
  const size_t passes = stage_of_chunk.size() * static_cast<size_t>(shape.micro_batches) * 3;
  const int tries = static_cast<int>(std::min<size_t>(kPassesTimed / 3 / passes, 2000));
  std::vector<std::pair<double, PipelineOps>> improved;
  for (size_t i = 0; i < std::min<size_t>(kImproved, order.size()); ++i) {
    PipelineOps ops = Improve(candidates[order[i].second], costs, tries);
    const double makespan = TimePipeline(ops, costs)->makespan;
    const bool known = std::any_of(improved.begin(), improved.end(),
                                   [&](const auto& other) { return other.second == ops; });
    if (!known) improved.emplace_back(makespan, std::move(ops));
  }
  std::stable_sort(improved.begin(), improved.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PipelineOps> best;
  for (auto& [makespan, ops] : improved) {
    if (static_cast<int>(best.size()) < count) best.push_back(std::move(ops));
  }
  return best;
}

}  // namespace esteira
