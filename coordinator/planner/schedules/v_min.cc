// V-Min (Qi et al., 2024): two chunks a stage, placed as a V, and about a third of 1F1B's
// activations, the least that any order of passes can have.
#include "coordinator/planner/schedules/building_block.h"

namespace esteira {

PipelineOps VMinSchedule(const PipelineShape& shape) {
  return RepeatBlock(
      {.forward_forth = 1, .forward_back = 1, .backward_forth = 1, .backward_back = 1}, shape);
}

}  // namespace esteira
