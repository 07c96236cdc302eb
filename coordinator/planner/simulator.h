// A lowered plan on the abstract machine with durations: what a step will take.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "common/plan/time_use.h"

namespace esteira {

struct Simulation {
  Execution execution;             // by stage
  std::vector<TimeUse> time_uses;  // by stage
  double bubble_ratio = 0;         // of the step, averaged over the stages
  double exposed_communication_ratio = 0;
  double utilization = 0;  // share of the step in which the compute queues are busy
};

absl::StatusOr<Simulation> Simulate(const Plan& plan, const DurationFunction& duration);

// Times, and memory by stage.
absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration);
Prediction PredictionOf(const Plan& plan, const Simulation& simulation);

int64_t PeakBytes(const Prediction& prediction);  // of the stage whose ranks need most

}  // namespace esteira
