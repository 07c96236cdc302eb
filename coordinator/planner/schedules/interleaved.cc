// Interleaved 1F1B (Narayanan et al., 2021): with v chunks a stage the pipeline fills v times
// faster. Micro-batches go in rounds of `stages`, each round through all chunks of a stage in turn;
// an incomplete last round is the same schedule without what is missing.
#include <algorithm>
#include <utility>

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {
namespace {

// The k-th forward pass of a stage, or, with `backward`, its k-th backward pass.
ChunkOp NthPass(const PipelineShape& shape, int stage, int k, bool backward) {
  const int round = k / (shape.stages * shape.chunks_per_stage);
  const int within = k % (shape.stages * shape.chunks_per_stage);
  const int visit = within / shape.stages;
  const int local = backward ? shape.chunks_per_stage - 1 - visit : visit;
  return {backward ? Op::kBackward : Op::kForward, local * shape.stages + stage,
          round * shape.stages + within % shape.stages};
}

}  // namespace

PipelineOps InterleavedSchedule(const PipelineShape& shape) {
  PipelineOps pipeline{RoundRobinPlacement(shape), StageOps(static_cast<size_t>(shape.stages))};
  const int rounds = (shape.micro_batches + shape.stages - 1) / shape.stages;
  const int passes = rounds * shape.stages * shape.chunks_per_stage;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<ChunkOp>& mine = pipeline.ops[static_cast<size_t>(stage)];
    // With one chunk this is 1F1B; with more, a stage waits for its neighbours in both directions.
    const int distance = shape.stages - 1 - stage;
    const int ahead =
        std::min(passes, shape.chunks_per_stage == 1
                             ? distance
                             : 2 * distance + (shape.chunks_per_stage - 1) * shape.stages);
    for (int k = 0; k < ahead; ++k) mine.push_back(NthPass(shape, stage, k, false));
    for (int k = ahead; k < passes; ++k) {
      mine.push_back(NthPass(shape, stage, k, false));
      mine.push_back(NthPass(shape, stage, k - ahead, true));
    }
    for (int k = passes - ahead; k < passes; ++k) mine.push_back(NthPass(shape, stage, k, true));
  }
  return KeepMicroBatches(std::move(pipeline), shape.micro_batches);
}

}  // namespace esteira
