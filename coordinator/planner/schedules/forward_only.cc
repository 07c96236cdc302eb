// Evaluation: every micro-batch forward, nothing kept.
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

StageOps ForwardOnlySchedule(int stages, int micro_batches) {
  StageOps ops(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    for (int j = 0; j < micro_batches; ++j) {
      ops[static_cast<size_t>(stage)].push_back({Op::kForward, stage, j});
    }
  }
  return ops;
}

}  // namespace esteira
