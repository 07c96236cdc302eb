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
  for (const TimeUse& use : simulation.time_uses) {
    for (size_t op = 0; op < use.busy.size(); ++op) {
      prediction.op_seconds[op] += use.busy[op] * plan.layout.replicas;
    }
  }
  for (const Program& program : plan.train) prediction.memory.push_back(CountMemory(plan, program));
  return prediction;
}

absl::StatusOr<Prediction> Predict(const Plan& plan, const DurationFunction& duration) {
  ASSIGN_OR_RETURN(const Simulation simulation, Simulate(plan, duration));
  return PredictionOf(plan, simulation);
}

int64_t PeakBytes(const Prediction& prediction) {
  int64_t peak = 0;
  for (const MemoryUse& use : prediction.memory) peak = std::max(peak, use.total());
  return peak;
}

}  // namespace esteira
