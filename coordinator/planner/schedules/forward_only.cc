#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

StageOps ForwardOnlySchedule(const std::vector<int>& stage_of_chunk, int stages,
                             int micro_batches) {
  StageOps ops(static_cast<size_t>(stages));
  for (int j = 0; j < micro_batches; ++j) {
    for (size_t chunk = 0; chunk < stage_of_chunk.size(); ++chunk) {
      ops[static_cast<size_t>(stage_of_chunk[chunk])].push_back(
          {Op::kForward, static_cast<int>(chunk), j});
    }
  }
  return ops;
}

}  // namespace esteira
