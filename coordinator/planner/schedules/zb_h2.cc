// ZB-H2 (Qi et al., 2023): twice 1F1B's activations, and no stage stands idle between its first
// and its last pass.
#include "coordinator/planner/schedules/building_block.h"

namespace esteira {

PipelineOps ZbH2Schedule(const PipelineShape& shape) {
  return RepeatBlock({.forward_forth = 2, .backward_back = 4}, shape);
}

}  // namespace esteira
