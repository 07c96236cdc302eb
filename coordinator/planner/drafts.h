// Every way to carry out a request that is worth a look: which shapes, micro-batch sizes, schedules
// and placements of workers it leaves open. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/plan/job_spec.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/search.h"

namespace esteira {

// Drafts that differ in more than ZeRO, windows and recomputation. Their layouts have the lowest
// ZeRO level and the laxest policies that the request allows.
struct Frame {
  Draft draft;
  int rank_of_preference = 0;  // among equally fast ones the lower is taken: the simpler schedule
};

// Frames of one shape and one micro-batch size, by preference. Empty when the model has too few
// units for each of the schedules.
std::vector<Frame> FramesOf(const JobSpec& job, const ClusterSpec& cluster, const Shape& shape,
                            int64_t micro_batch_size);

std::vector<int64_t> MicroBatchSizes(const JobSpec& job, const Shape& shape);
std::vector<int> ZeroLevels(const LayoutRequest& request, int replicas);

// What the stages of a layout with this ZeRO level may do, from fast and large to slow and small.
std::vector<StagePolicy> PolicyLadder(const LayoutRequest& request, int zero, int stages,
                                      int micro_batches);

// Bytes that each stage may use: the least of its workers'; 0: no budget.
std::vector<int64_t> Budgets(const ClusterSpec& cluster, const Draft& draft);

}  // namespace esteira
