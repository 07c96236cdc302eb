// Schedules from a repeated pattern (Qi et al., "Pipeline Parallelism with Controllable Memory",
// 2024). A micro-batch visits the stages at given distances in time; the next one follows `period`
// later, and the pattern is such that on no stage two passes fall together. How far the passes lie
// apart decides how long activations live, hence the memory; where weight gradients are formed is
// left to what fills the idle time within that memory. For equal times of F, I and W.
#pragma once

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

// Units of time from the start of a pass on one stage to its start on the next one in its
// direction. One chunk a stage: forward and backward of it. Two: the wave goes forth (stage 0 to
// the last) and back.
struct BuildingBlock {
  int forward_forth = 1;
  int forward_back = 0;    // two chunks
  int backward_forth = 0;  // two chunks
  int backward_back = 2;
};

// `shape` has one or two chunks a stage; two are placed as a wave.
PipelineOps RepeatBlock(const BuildingBlock& block, const PipelineShape& shape);

}  // namespace esteira
