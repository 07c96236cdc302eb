// The schedule `auto`: built for the times and the memory at hand, where the named ones assume
// equal passes. Pure and deterministic.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/planner/schedules/schedules.h"
#include "coordinator/planner/schedules/timing.h"

namespace esteira {

// How a list schedule chooses among the passes that a stage could start.
struct ListRule {
  // Micro-batches in flight on a stage, besides its distance to the last stage; -1: no limit.
  int ahead = 0;
  // A weight gradient is formed in idle time when at least this part of it ends before the next
  // other pass is ready. 0: always.
  double weight_fit = 1;
  bool backward_first = true;
};

// Passes in the order of time: whenever a stage is free, the best pass that is ready, looking ahead
// to when the next ones will be. Takes memory only as far as every micro-batch can still end, so it
// ends for every budget that holds one micro-batch; none otherwise.
std::optional<PipelineOps> ListSchedule(const PipelineShape& shape,
                                        const std::vector<int>& stage_of_chunk,
                                        const ChunkCosts& costs, const ListRule& rule);

// Exchanges neighbouring passes on the critical path while that makes the step shorter, with at
// most `tries` attempts; keeps to the budget. W directly after its I becomes B.
PipelineOps Improve(PipelineOps pipeline, const ChunkCosts& costs, int tries);

// The best that the two find from several rules, and from those of `others` that fit the budget:
// at most `count`, the shortest first; none when nothing fits.
std::vector<PipelineOps> BestSchedules(const PipelineShape& shape,
                                       const std::vector<int>& stage_of_chunk,
                                       const ChunkCosts& costs,
                                       const std::vector<PipelineOps>& others, int count);

}  // namespace esteira
