#pragma once

#include <functional>

#include "coordinator/controller/job_planner.h"

namespace esteira {

// MakePlan, or what a test puts in its place.
using PlanFunction = std::function<absl::StatusOr<Plan>(const JobSpec&, const ClusterSpec&)>;

// Reads specs and writes plans in their wire form; what lies between is the plan function's.
// Thread-safe if that is.
class WirePlanner : public JobPlanner {
 public:
  static constexpr int kMaxRanks = 4096;

  explicit WirePlanner(PlanFunction make_plan) : make_plan_(std::move(make_plan)) {}

  absl::StatusOr<JobNeeds> Check(const std::string& spec_bytes) override;
  absl::StatusOr<PlannedJob> Plan(const std::string& spec_bytes,
                                  const ClusterSpec& cluster) override;

 private:
  const PlanFunction make_plan_;
};

}  // namespace esteira
