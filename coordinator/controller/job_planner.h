#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/job/job.h"
#include "coordinator/planner/planner.h"

namespace esteira {

// What must be known of a job before it can be planned.
struct JobNeeds {
  std::string name;
  int min_workers = 1;  // what the user fixed needs at least so many
};

struct PlannedJob {
  PlanSummary summary;
  std::vector<int> worker_of_rank;  // index into the cluster's workers; each at most once
  std::string plan_bytes;           // packed, for the workers
  double flops_per_token = 0;
};

// Specs in their wire form -> plans. Pure; called on the controller's thread.
class JobPlanner {
 public:
  virtual ~JobPlanner() = default;
  // InvalidArgument with every fault.
  virtual absl::StatusOr<JobNeeds> Check(const std::string& spec_bytes) = 0;
  // As MakePlan; the plan has at most cluster.num_workers() ranks.
  virtual absl::StatusOr<PlannedJob> Plan(const std::string& spec_bytes,
                                          const ClusterSpec& cluster) = 0;
};

}  // namespace esteira
