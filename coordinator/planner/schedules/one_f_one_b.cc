// 1F1B (PipeDream-Flush; Narayanan et al., 2021): a stage runs ahead by its distance to the last
// stage, then alternates. It holds at most stages - stage micro-batches, where GPipe holds them
// all, with the same bubble.
#include <algorithm>

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

StageOps OneForwardOneBackwardSchedule(int stages, int micro_batches) {
  StageOps ops(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<ChunkOp>& mine = ops[static_cast<size_t>(stage)];
    const int ahead = std::min(micro_batches, stages - 1 - stage);
    for (int j = 0; j < ahead; ++j) mine.push_back({Op::kForward, stage, j});
    for (int j = ahead; j < micro_batches; ++j) {
      mine.push_back({Op::kForward, stage, j});
      mine.push_back({Op::kBackward, stage, j - ahead});
    }
    for (int j = micro_batches - ahead; j < micro_batches; ++j) {
      mine.push_back({Op::kBackward, stage, j});
    }
  }
  return ops;
}

}  // namespace esteira
