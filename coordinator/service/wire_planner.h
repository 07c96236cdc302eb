#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "common/rpc/limits.h"
#include "coordinator/controller/job_planner.h"
#include "coordinator/planner/planner.h"

namespace esteira {

// MakePlan, or what a test puts in its place.
using PlanFunction = std::function<absl::StatusOr<Plan>(const JobSpec&, const ClusterSpec&)>;

// Reads specs and writes plans in their wire form; what lies between is the plan function's. Both
// travel to a worker in one message of at most `max_bytes`; a plan that does not fit is refused.
// Thread-safe if that is.
class WirePlanner : public JobPlanner {
 public:
  explicit WirePlanner(PlanFunction make_plan, size_t max_bytes = kMaxMessageBytes)
      : make_plan_(std::move(make_plan)), max_bytes_(max_bytes) {}

  absl::StatusOr<JobNeeds> Check(const std::string& spec_bytes) override;
  absl::StatusOr<PlannedJob> Plan(const std::string& spec_bytes,
                                  const ClusterSpec& cluster) override;

 private:
  const PlanFunction make_plan_;
  const size_t max_bytes_;
};

}  // namespace esteira
