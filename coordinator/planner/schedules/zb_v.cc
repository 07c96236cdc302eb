// ZB-V (Qi et al., 2024): two chunks a stage, placed as a V. 1F1B's activations, and no stage
// stands idle between its first and its last pass.
#include "coordinator/planner/schedules/building_block.h"

namespace esteira {

PipelineOps ZbVSchedule(const PipelineShape& shape) {
  return RepeatBlock(
      {.forward_forth = 2, .forward_back = 4, .backward_forth = 2, .backward_back = 4}, shape);
}

}  // namespace esteira
