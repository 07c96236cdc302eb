// GPipe (Huang et al., 2019): all forward passes, then all backward passes.
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

StageOps GpipeSchedule(int stages, int micro_batches) {
  StageOps ops(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<ChunkOp>& mine = ops[static_cast<size_t>(stage)];
    for (int j = 0; j < micro_batches; ++j) mine.push_back({Op::kForward, stage, j});
    for (int j = 0; j < micro_batches; ++j) mine.push_back({Op::kBackward, stage, j});
  }
  return ops;
}

}  // namespace esteira
