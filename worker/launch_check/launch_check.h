#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "worker/model/unit_compute.h"

namespace esteira {

struct LaunchCheckOptions {
  int most_ranks = 0;  // 0: as many as the plan has; replicas beyond are left out
  absl::Duration timeout = absl::Minutes(1);   // of one operation
  std::function<UnitFactory(int rank)> units;  // null: the model's
};

struct LaunchCheckReport {
  int ranks = 0;
  int replicas_left_out = 0;
};

// Carries out `plan` at toy width for two steps, a thread for each rank of this process, and
// compares losses, norms and every parameter with the oracle's: to the bit in exact numerics, and,
// when the job's are fast, once more in those (fp32, within what the order of sums, or
// rounding gradients to bf16, can change).
// Internal names the first parameter, element, step and rank that differ. Uses the host's
// processor, whatever the job's device: it checks the plan and the engine, not the machine.
absl::StatusOr<LaunchCheckReport> CheckLaunch(const JobSpec& job, const Plan& plan,
                                              const LaunchCheckOptions& options);

}  // namespace esteira
