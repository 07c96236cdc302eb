// A lowered plan on the abstract machine with durations: what a step will take.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "common/plan/time_use.h"

namespace esteira {

struct Simulation {
  Execution execution;             // by program
  std::vector<TimeUse> time_uses;  // by program
  double bubble_ratio = 0;         // of the step, averaged over the programs
  double exposed_communication_ratio = 0;
  double utilization = 0;  // share of the step in which the compute queues are busy
};

absl::StatusOr<Simulation> Simulate(const Plan& plan, const DurationFunction& duration);

// Times, and memory by rank. A plan of the first replica alone stands for all of them: what it
// counts by rank is repeated for the others.
absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration);
Prediction PredictionOf(const Plan& plan, const Simulation& simulation);

int64_t PeakBytes(const Prediction& prediction);  // of the rank that needs most
int LargestRank(const Prediction& prediction);    // which that is

}  // namespace esteira
