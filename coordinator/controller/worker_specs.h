// What membership knows of workers, as the planner wants it. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/membership/membership.h"
#include "coordinator/planner/cluster.h"

namespace esteira {

// By kind of device: measured over modelled seconds of each op.
using OpFactorsByKind = std::map<std::string, OpFactors>;

// The workers with these ids, in this order. Rates of one kind of device that differ by less than
// kEqualRates count as equal: measuring twice gives two numbers, and equal workers should get equal
// shares and the same plan each time. What a worker does not know is the planner's default. Hosts
// are numbered as they come. Factors: of the kind, when all workers are of one.
ClusterSpec ClusterOf(const Membership& membership, const std::vector<std::string>& ids,
                      const OpFactorsByKind& factors);

// All workers that are not lost, and as many more of the smallest kind as make `min_workers`: what
// a job could run on one day.
ClusterSpec PossibleCluster(const Membership& membership, int min_workers,
                            const OpFactorsByKind& factors);

inline constexpr double kEqualRates = 1.25;

}  // namespace esteira
