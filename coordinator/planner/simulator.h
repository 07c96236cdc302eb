// What a plan will cost: the abstract machine that validates a plan, with durations. Chooses
// nothing. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace esteira {

struct Simulation {
  Execution execution;  // of the train programs
  // Time in which a rank's compute queue stands idle, over the time of all ranks.
  double bubble_ratio = 0;
};

absl::StatusOr<Simulation> Simulate(const Plan& plan, const DurationFunction& duration);

// Step time, bubble and memory of a lowered plan.
absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration);

}  // namespace esteira
