// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): 1F1B's memory on every stage; its
// weight gradients, formed apart, fill two thirds of the bubble.
#include "coordinator/planner/schedules/building_block.h"

namespace esteira {

PipelineOps ZbH1Schedule(const PipelineShape& shape) {
  return RepeatBlock({.forward_forth = 1, .backward_back = 2}, shape);
}

}  // namespace esteira
