#include "coordinator/planner/schedules/timing.h"

#include <algorithm>
#include <numeric>

namespace esteira {
namespace {

class Runner {
 public:
  Runner(const PipelineOps& pipeline, const ChunkCosts& costs)
      : pipeline_(pipeline), costs_(costs), next_(pipeline.ops.size(), 0) {
    for (const std::vector<ChunkOp>& stage : pipeline.ops) {
      for (const ChunkOp& op : stage) micro_batches_ = std::max(micro_batches_, op.micro_batch + 1);
    }
    const size_t cells = pipeline.stage_of_chunk.size() * static_cast<size_t>(micro_batches_);
    forward_end_.assign(cells, kNever);
    input_end_.assign(cells, kNever);
  }

  std::optional<PipelineTimes> Run() {
    const size_t stages = pipeline_.ops.size();
    times_.busy_seconds.assign(stages, 0);
    times_.peak_bytes.assign(stages, 0);
    times_.intervals.resize(stages);
    free_.assign(stages, 0);
    held_.assign(stages, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages; ++s) {
        while (next_[s] < pipeline_.ops[s].size() && Advance(s)) moved = true;
      }
    }
    for (size_t s = 0; s < stages; ++s) {
      if (next_[s] < pipeline_.ops[s].size()) return std::nullopt;
      times_.makespan = std::max(times_.makespan, free_[s]);
    }
    return std::move(times_);
  }

 private:
  static constexpr double kNever = -1;

  double& End(std::vector<double>& ends, int chunk, int micro_batch) const {
    return ends[static_cast<size_t>(chunk) * static_cast<size_t>(micro_batches_) +
                static_cast<size_t>(micro_batch)];
  }

  // When what `op` waits for is there; kNever when that is not known yet.
  double Ready(const ChunkOp& op) {
    const auto chunk = static_cast<size_t>(op.chunk);
    if (op.op == Op::kForward) {
      if (op.chunk == 0) return 0;
      const double end = End(forward_end_, op.chunk - 1, op.micro_batch);
      return end == kNever ? kNever : end + costs_.link_seconds[chunk - 1];
    }
    const double own = End(forward_end_, op.chunk, op.micro_batch);
    if (own == kNever || op.op == Op::kBackwardWeight) {
      return op.op == Op::kBackwardWeight ? End(input_end_, op.chunk, op.micro_batch) : own;
    }
    if (chunk + 1 == pipeline_.stage_of_chunk.size()) return own;
    const double end = End(input_end_, op.chunk + 1, op.micro_batch);
    return end == kNever ? kNever : std::max(own, end + costs_.link_seconds[chunk]);
  }

  bool Advance(size_t s) {
    const ChunkOp& op = pipeline_.ops[s][next_[s]];
    const double ready = Ready(op);
    if (ready == kNever) return false;
    const double start = std::max(free_[s], ready);
    free_[s] = start + costs_.Seconds(op);
    times_.intervals[s].emplace_back(start, free_[s]);
    times_.busy_seconds[s] += costs_.Seconds(op);
    const double bytes = costs_.bytes[static_cast<size_t>(op.chunk)];
    if (op.op == Op::kForward) {
      End(forward_end_, op.chunk, op.micro_batch) = free_[s];
      held_[s] += bytes;
      times_.peak_bytes[s] = std::max(times_.peak_bytes[s], held_[s]);
    } else if (op.op == Op::kBackwardWeight) {
      held_[s] -= bytes;
    } else {
      End(input_end_, op.chunk, op.micro_batch) = free_[s];
      if (op.op == Op::kBackward) held_[s] -= bytes;
    }
    ++next_[s];
    return true;
  }

  const PipelineOps& pipeline_;
  const ChunkCosts& costs_;
  int micro_batches_ = 0;
  std::vector<size_t> next_;
  std::vector<double> free_, held_;  // by stage
  mutable std::vector<double> forward_end_, input_end_;
  PipelineTimes times_;
};

}  // namespace

ChunkCosts ChunkCosts::Unit(int chunks) {
  const std::vector<double> ones(static_cast<size_t>(chunks), 1.0);
  return {.forward_seconds = ones,
          .input_seconds = ones,
          .weight_seconds = ones,
          .link_seconds = std::vector<double>(static_cast<size_t>(chunks), 0.0),
          .bytes = ones,
          .budget_bytes = {}};
}

double ChunkCosts::Seconds(const ChunkOp& op) const {
  const auto chunk = static_cast<size_t>(op.chunk);
  switch (op.op) {
    case Op::kForward: return forward_seconds[chunk];
    case Op::kBackwardInput: return input_seconds[chunk];
    case Op::kBackwardWeight: return weight_seconds[chunk];
    default: return input_seconds[chunk] + weight_seconds[chunk];
  }
}

double PipelineTimes::bubble_ratio() const {
  const double busy = std::accumulate(busy_seconds.begin(), busy_seconds.end(), 0.0);
  const double all = makespan * static_cast<double>(busy_seconds.size());
  return all > 0 ? 1 - busy / all : 0;
}

std::optional<PipelineTimes> TimePipeline(const PipelineOps& pipeline, const ChunkCosts& costs) {
  return Runner(pipeline, costs).Run();
}

bool FitsBudget(const PipelineTimes& times, const ChunkCosts& costs) {
  for (size_t s = 0; s < costs.budget_bytes.size(); ++s) {
    if (times.peak_bytes[s] > costs.budget_bytes[s]) return false;
  }
  return true;
}

}  // namespace esteira
