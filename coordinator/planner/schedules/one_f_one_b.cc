// 1F1B (PipeDream-Flush; Narayanan et al., 2021): a stage runs ahead by its distance to the last
// stage, then alternates. It holds at most stages - stage micro-batches, where GPipe holds them
// all, with the same bubble.
#include <algorithm>

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

PipelineOps OneForwardOneBackwardSchedule(const PipelineShape& shape) {
  PipelineOps pipeline{RoundRobinPlacement(shape), StageOps(static_cast<size_t>(shape.stages))};
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<ChunkOp>& mine = pipeline.ops[static_cast<size_t>(stage)];
    const int ahead = std::min(shape.micro_batches, shape.stages - 1 - stage);
    for (int j = 0; j < ahead; ++j) mine.push_back({Op::kForward, stage, j});
    for (int j = ahead; j < shape.micro_batches; ++j) {
      mine.push_back({Op::kForward, stage, j});
      mine.push_back({Op::kBackward, stage, j - ahead});
    }
    for (int j = shape.micro_batches - ahead; j < shape.micro_batches; ++j) {
      mine.push_back({Op::kBackward, stage, j});
    }
  }
  return pipeline;
}

}  // namespace esteira
