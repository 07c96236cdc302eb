// GPipe (Huang et al., 2019): all forward passes, then all backward passes.
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

PipelineOps GpipeSchedule(const PipelineShape& shape) {
  PipelineOps pipeline{RoundRobinPlacement(shape), StageOps(static_cast<size_t>(shape.stages))};
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<ChunkOp>& mine = pipeline.ops[static_cast<size_t>(stage)];
    for (int j = 0; j < shape.micro_batches; ++j) mine.push_back({Op::kForward, stage, j});
    for (int j = 0; j < shape.micro_batches; ++j) mine.push_back({Op::kBackward, stage, j});
  }
  return pipeline;
}

}  // namespace esteira
