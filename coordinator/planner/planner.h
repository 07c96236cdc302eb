#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"

namespace esteira {

// What the planner knows of the workers it may use.
struct ClusterSpec {
  int num_workers = 0;
  int64_t memory_bytes_per_worker = 0;  // 0: unknown, no budget
  double flops_per_worker = 100e9;      // achieved, not peak
  double link_latency_seconds = 20e-6;
  double link_bytes_per_second = 2e9;
};

// Job -> validated, lowered plan, or InvalidArgument with the reason and the nearest layout that
// can run (ResourceExhausted when it does not fit in memory). Pure: the same input gives the same
// plan.
absl::StatusOr<Plan> MakePlan(const JobSpec& job, const ClusterSpec& cluster);

// The layout with everything that the user left open filled in.
absl::StatusOr<Layout> ChooseLayout(const JobSpec& job, const ClusterSpec& cluster);

}  // namespace esteira
