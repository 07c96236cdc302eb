#include "worker/engine/timing.h"

#include "common/plan/time_use.h"

namespace esteira {

void AddTimes(const Program& program, const std::vector<std::vector<int32_t>>& waits,
              const std::vector<Interval>& intervals, StepReport& report) {
  const TimeUse use = MeasureTimeUse(program, waits, intervals);
  report.step_seconds = use.step;
  report.compute_seconds = use.compute;
  report.bubble_seconds = use.bubble();
  report.exposed_shard_seconds = use.exposed_communication();
  report.op_seconds = use.busy;
}

}  // namespace esteira
