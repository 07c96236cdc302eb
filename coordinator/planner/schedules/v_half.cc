// V-Half (Qi et al., 2024): two chunks a stage, placed as a V, and about half of 1F1B's
// activations.
#include "coordinator/planner/schedules/building_block.h"

namespace esteira {

PipelineOps VHalfSchedule(const PipelineShape& shape) {
  return RepeatBlock(
      {.forward_forth = 1, .forward_back = 2, .backward_forth = 1, .backward_back = 2}, shape);
}

}  // namespace esteira
