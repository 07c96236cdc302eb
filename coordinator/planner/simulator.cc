#include "coordinator/planner/simulator.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/plan/dependencies.h"
#include "common/plan/validate.h"

namespace esteira {

absl::StatusOr<Simulation> Simulate(const Plan& plan, const DurationFunction& duration) {
  Simulation simulation;
  ASSIGN_OR_RETURN(simulation.execution, RunMachine(plan, plan.train, duration));
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  const double step = simulation.execution.makespan;
  for (size_t p = 0; p < plan.train.size(); ++p) {
    const Program& program = plan.train[p];
    const TimeUse use =
        MeasureTimeUse(program, Dependencies(units, PlacementOf(plan.layout.zero), program),
                       simulation.execution.intervals[p]);
    const auto programs = static_cast<double>(plan.train.size());
    if (step > 0) {
      simulation.bubble_ratio += use.bubble() / step / programs;
      simulation.exposed_communication_ratio += use.exposed_communication() / step / programs;
      simulation.utilization += use.compute / step / programs;
    }
    simulation.time_uses.push_back(use);
  }
  return simulation;
}

Prediction PredictionOf(const Plan& plan, const Simulation& simulation) {
  Prediction prediction;
  prediction.step_seconds = simulation.execution.makespan;
  prediction.bubble_ratio = simulation.bubble_ratio;
  prediction.exposed_communication_ratio = simulation.exposed_communication_ratio;
  const auto ranks = static_cast<size_t>(plan.layout.num_ranks());
  const size_t programs = plan.train.size();
  CHECK(programs > 0);
  const double ranks_of_program = static_cast<double>(ranks) / static_cast<double>(programs);
  for (const TimeUse& use : simulation.time_uses) {
    for (size_t op = 0; op < use.busy.size(); ++op) {
      prediction.op_seconds[op] += use.busy[op] * ranks_of_program;
    }
  }
  for (size_t p = 0; p < programs; ++p) {
    prediction.memory.push_back(CountMemory(plan, plan.train[p], plan.evaluate[p]));
  }
  for (size_t rank = programs; rank < ranks; ++rank) {
    prediction.memory.push_back(prediction.memory[rank % programs]);
  }
  return prediction;
}

absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration) {
  ASSIGN_OR_RETURN(const Simulation simulation, Simulate(plan, duration));
  return PredictionOf(plan, simulation);
}

int LargestRank(const Prediction& prediction) {
  const auto largest = std::max_element(
      prediction.memory.begin(), prediction.memory.end(),
      [](const MemoryUse& a, const MemoryUse& b) { return a.total() < b.total(); });
  return static_cast<int>(largest - prediction.memory.begin());
}

int64_t PeakBytes(const Prediction& prediction) {
  return prediction.memory[static_cast<size_t>(LargestRank(prediction))].total();
}

}  // namespace esteira
