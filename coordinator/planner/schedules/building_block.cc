#include "coordinator/planner/schedules/building_block.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

// F, I and W of a chunk take one unit of time each.
int Period(const PipelineShape& shape) { return 3 * shape.chunks_per_stage; }

// A pass of the first micro-batch on a stage.
struct Pass {
  Op op;
  int chunk;
  int start;  // units of time
};

// The passes F and I of the first micro-batch, by stage. `waits` are idle units of time at the
// turns: between the last pass on the way forth and the first on the way back, and so on.
std::vector<std::vector<Pass>> FirstMicroBatch(const BuildingBlock& block,
                                               const PipelineShape& shape,
                                               const std::array<int, 3>& waits) {
  const int last = shape.stages - 1;
  std::vector<std::vector<Pass>> passes(static_cast<size_t>(shape.stages));
  const auto visit = [&](Op op, int first_chunk, bool forth, int start, int distance) {
    for (int i = 0; i <= last; ++i) {
      const int stage = forth ? i : last - i;
      const int chunk = op == Op::kForward ? first_chunk + i : first_chunk - i;
      passes[static_cast<size_t>(stage)].push_back({op, chunk, start + i * distance});
    }
    return start + last * distance + 1;
  };
  if (shape.chunks_per_stage == 1) {
    const int turn = visit(Op::kForward, 0, true, 0, block.forward_forth) + waits[0];
    visit(Op::kBackwardInput, last, false, turn, block.backward_back);
    return passes;
  }
  int time = visit(Op::kForward, 0, true, 0, block.forward_forth) + waits[0];
  time = visit(Op::kForward, shape.stages, false, time, block.forward_back) + waits[1];
  time = visit(Op::kBackwardInput, 2 * last + 1, true, time, block.backward_forth) + waits[2];
  visit(Op::kBackwardInput, last, false, time, block.backward_back);
  return passes;
}

bool Collides(const std::vector<std::vector<Pass>>& passes, int period) {
  for (const std::vector<Pass>& stage : passes) {
    for (size_t a = 0; a < stage.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if ((stage[a].start - stage[b].start) % period == 0) return true;
      }
    }
  }
  return false;
}

// The pattern with the shortest waits that has no collision.
std::vector<std::vector<Pass>> Pattern(const BuildingBlock& block, const PipelineShape& shape) {
  const int period = Period(shape);
  const int turns = shape.chunks_per_stage == 1 ? 1 : 3;
  for (int total = 0; total <= turns * period; ++total) {
    for (int a = 0; a <= std::min(total, period); ++a) {
      for (int b = 0; b <= (turns == 1 ? 0 : std::min(total - a, period)); ++b) {
        const int c = total - a - b;
        if (turns == 1 && c > 0) continue;
        auto passes = FirstMicroBatch(block, shape, {a, b, c});
        if (!Collides(passes, period)) return passes;
      }
    }
  }
  CHECK(false);  // the distances of a block leave room for each pass
  return {};
}

// Activations that a stage holds at most in the steady state, when each W takes the first unit of
// time after its I that is free in the pattern.
int SteadyPeak(const std::vector<Pass>& passes, int period) {
  std::vector<bool> taken(static_cast<size_t>(period), false);
  for (const Pass& pass : passes) taken[static_cast<size_t>(pass.start % period)] = true;
  std::vector<std::pair<int, int>> lives;  // from the start of F to the end of W
  std::vector<Pass> inputs;
  for (const Pass& pass : passes) {
    if (pass.op == Op::kBackwardInput) inputs.push_back(pass);
  }
  std::sort(inputs.begin(), inputs.end(),
            [](const Pass& a, const Pass& b) { return a.start < b.start; });
  for (const Pass& input : inputs) {
    int weight = input.start + 1;
    while (taken[static_cast<size_t>(weight % period)]) ++weight;
    taken[static_cast<size_t>(weight % period)] = true;
    const auto forward = std::find_if(passes.begin(), passes.end(), [&](const Pass& pass) {
      return pass.op == Op::kForward && pass.chunk == input.chunk;
    });
    lives.emplace_back(forward->start, weight + 1);
  }
  int peak = 0;
  for (int residue = 0; residue < period; ++residue) {
    int alive = 0;
    for (const auto& [begin, end] : lives) {
      // Micro-batches j with begin + j * period <= t < end + j * period, for a late t = residue.
      const int t = residue + end / period * period + period;
      for (int start = begin; start <= t; start += period) alive += t < start + end - begin ? 1 : 0;
    }
    peak = std::max(peak, alive);
  }
  return peak;
}

// Runs the passes in their order in unit time, and forms weight gradients where a stage would stand
// idle or has no memory left for the next F.
class WeightFill {
 public:
  WeightFill(std::vector<std::vector<ChunkOp>> passes, std::vector<int> stage_of_chunk, int peak)
      : passes_(std::move(passes)), stage_of_chunk_(std::move(stage_of_chunk)), peak_(peak) {
    for (const std::vector<ChunkOp>& stage : passes_) {
      for (const ChunkOp& op : stage) micro_batches_ = std::max(micro_batches_, op.micro_batch + 1);
    }
    const size_t cells = stage_of_chunk_.size() * static_cast<size_t>(micro_batches_);
    forward_end_.assign(cells, -1);
    input_end_.assign(cells, -1);
  }

  StageOps Run() {
    StageOps result(passes_.size());
    std::vector<size_t> next(passes_.size(), 0);
    std::vector<int> held(passes_.size(), 0);
    std::vector<std::deque<ChunkOp>> pending(passes_.size());
    size_t left = 0;
    for (const std::vector<ChunkOp>& stage : passes_) left += stage.size() * 3 / 2;
    for (int time = 0; left > 0; ++time) {
      for (size_t s = 0; s < passes_.size(); ++s) {
        if (next[s] < passes_[s].size() && IsReady(passes_[s][next[s]], time) &&
            (passes_[s][next[s]].op != Op::kForward || held[s] < peak_)) {
          const ChunkOp& op = passes_[s][next[s]++];
          result[s].push_back(op);
          held[s] += op.op == Op::kForward ? 1 : 0;
          EndOf(op) = time + 1;
          if (op.op == Op::kBackwardInput) pending[s].push_back(op);
        } else if (!pending[s].empty()) {
          ChunkOp weight = pending[s].front();
          pending[s].pop_front();
          weight.op = Op::kBackwardWeight;
          result[s].push_back(weight);
          --held[s];
        } else {
          continue;
        }
        --left;
      }
    }
    return result;
  }

 private:
  size_t Cell(int chunk, int micro_batch) const {
    return static_cast<size_t>(chunk) * static_cast<size_t>(micro_batches_) +
           static_cast<size_t>(micro_batch);
  }
  int& EndOf(const ChunkOp& op) {
    std::vector<int>& ends = op.op == Op::kForward ? forward_end_ : input_end_;
    return ends[Cell(op.chunk, op.micro_batch)];
  }
  bool Ended(const std::vector<int>& ends, int chunk, int micro_batch, int time) const {
    const int end = ends[Cell(chunk, micro_batch)];
    return end >= 0 && end <= time;
  }
  bool IsReady(const ChunkOp& op, int time) const {
    if (op.op == Op::kForward) {
      return op.chunk == 0 || Ended(forward_end_, op.chunk - 1, op.micro_batch, time);
    }
    if (!Ended(forward_end_, op.chunk, op.micro_batch, time)) return false;
    return op.chunk + 1 == static_cast<int>(stage_of_chunk_.size()) ||
           Ended(input_end_, op.chunk + 1, op.micro_batch, time);
  }

  const std::vector<std::vector<ChunkOp>> passes_;
  const std::vector<int> stage_of_chunk_;
  const int peak_;
  int micro_batches_ = 0;
  std::vector<int> forward_end_, input_end_;  // by chunk and micro-batch
};

}  // namespace

PipelineOps RepeatBlock(const BuildingBlock& block, const PipelineShape& shape) {
  const int period = Period(shape);
  const std::vector<std::vector<Pass>> pattern = Pattern(block, shape);
  std::vector<std::vector<ChunkOp>> passes(pattern.size());
  int peak = 0;
  for (size_t s = 0; s < pattern.size(); ++s) {
    peak = std::max(peak, SteadyPeak(pattern[s], period));
    std::vector<std::pair<int, ChunkOp>> timed;
    for (int j = 0; j < shape.micro_batches; ++j) {
      for (const Pass& pass : pattern[s]) {
        timed.push_back({pass.start + j * period, {pass.op, pass.chunk, j}});
      }
    }
    std::sort(timed.begin(), timed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [start, op] : timed) passes[s].push_back(op);
  }
  std::vector<int> placement = WavePlacement(shape);
  StageOps ops = WeightFill(std::move(passes), placement, peak).Run();
  return {std::move(placement), std::move(ops)};
}

}  // namespace esteira
