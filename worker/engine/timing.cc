#include "worker/engine/timing.h"

#include <algorithm>

namespace esteira {

void AddTimes(const Program& program, const std::vector<std::vector<int32_t>>& waits,
              const std::vector<Interval>& intervals, StepReport& report) {
  double compute_end = 0;  // of the last instruction on the compute queue
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Op op = program.instructions[i].op;
    const Interval& interval = intervals[i];
    report.op_seconds[static_cast<size_t>(op)] += interval.end - interval.start;
    report.step_seconds = std::max(report.step_seconds, interval.end);
    if (QueueOf(op) != Queue::kCompute) continue;
    double neighbours_end = compute_end;
    double shards_end = compute_end;
    for (int32_t wait : waits[i]) {
      const auto w = static_cast<size_t>(wait);
      double& end = IsPointToPoint(program.instructions[w].op) ? neighbours_end : shards_end;
      end = std::max(end, intervals[w].end);
    }
    report.bubble_seconds += neighbours_end - compute_end;
    report.exposed_shard_seconds += std::max(0.0, shards_end - neighbours_end);
    report.compute_seconds += interval.end - interval.start;
    compute_end = interval.end;
  }
  report.exposed_shard_seconds += report.step_seconds - compute_end;
}

}  // namespace esteira
