// What membership knows of workers, as the planner wants it. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/membership/membership.h"
#include "coordinator/planner/cluster.h"

namespace esteira {

// The workers with these ids, in this order.
ClusterSpec ClusterOf(const Membership& membership, const std::vector<std::string>& ids);

// All workers that are not lost, and as many more of the smallest kind as make `min_workers`: what
// a job could run on one day.
ClusterSpec PossibleCluster(const Membership& membership, int min_workers);

}  // namespace esteira
