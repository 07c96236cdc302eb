#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/simulator.h"

namespace esteira {

// Job -> validated, lowered plan, or InvalidArgument with the reason and the nearest layout that
// can run (ResourceExhausted when it does not fit in memory). Pure: the same input gives the same
// plan.
absl::StatusOr<Plan> MakePlan(const JobSpec& job, const ClusterSpec& cluster);

// A step as it would run, for people to look at; for any number of ranks.
struct PlannedStep {
  Plan plan;
  Simulation simulation;
  // The chosen layout with its figures, then at most three others and why each lost.
  std::vector<std::string> explanation;
};
absl::StatusOr<PlannedStep> PlanStep(const JobSpec& job, const ClusterSpec& cluster);

}  // namespace esteira
