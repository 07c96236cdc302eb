#include "coordinator/planner/simulator.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/plan/validate.h"

namespace esteira {

absl::StatusOr<Simulation> Simulate(const Plan& plan, const DurationFunction& duration) {
  Simulation simulation;
  ASSIGN_OR_RETURN(simulation.execution, RunMachine(plan, plan.train, duration));
  double busy = 0;
  for (size_t rank = 0; rank < plan.train.size(); ++rank) {
    const std::vector<Instruction>& instructions = plan.train[rank].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (QueueOf(instructions[i].op) != Queue::kCompute) continue;
      const Interval& interval = simulation.execution.intervals[rank][i];
      busy += interval.end - interval.start;
    }
  }
  const double total = simulation.execution.makespan * static_cast<double>(plan.train.size());
  simulation.bubble_ratio = total > 0 ? 1 - busy / total : 0;
  return simulation;
}

absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration) {
  ASSIGN_OR_RETURN(const Simulation simulation, Simulate(plan, duration));
  Prediction prediction;
  prediction.step_seconds = simulation.execution.makespan;
  prediction.bubble_ratio = simulation.bubble_ratio;
  for (size_t rank = 0; rank < plan.train.size(); ++rank) {
    prediction.memory.push_back(CountMemory(plan, plan.train[rank], plan.evaluate[rank]));
  }
  return prediction;
}

}  // namespace esteira
