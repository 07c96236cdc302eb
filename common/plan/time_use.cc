#include "common/plan/time_use.h"

#include <algorithm>
#include <utility>

namespace esteira {

bool WaitsForStages(Op op) {
  return IsPointToPoint(op) || op == Op::kNorm || op == Op::kTieGradient;
}

namespace {

double Sum(const std::array<double, kNumOps>& seconds, bool stages) {
  double sum = 0;
  for (int op = 0; op < kNumOps; ++op) {
    if (WaitsForStages(static_cast<Op>(op)) == stages) sum += seconds[static_cast<size_t>(op)];
  }
  return sum;
}

// Other stages first: communication counts only where it outlasts them. Then by end.
std::vector<int32_t> InOrderOfBlame(const Program& program, std::vector<int32_t> waits,
                                    const std::vector<Interval>& intervals) {
  const auto key = [&](int32_t wait) {
    const auto w = static_cast<size_t>(wait);
    return std::make_pair(!WaitsForStages(program.instructions[w].op), intervals[w].end);
  };
  std::sort(waits.begin(), waits.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  return waits;
}

}  // namespace

double TimeUse::bubble() const { return Sum(waited, true); }
double TimeUse::exposed_communication() const { return Sum(waited, false); }

TimeUse MeasureTimeUse(const Program& program, const std::vector<std::vector<int32_t>>& waits,
                       const std::vector<Interval>& intervals) {
  TimeUse use;
  double compute_end = 0;  // of the last instruction on the compute queue
  Op last = Op::kNorm;     // what ended last of all
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Op op = program.instructions[i].op;
    const Interval& interval = intervals[i];
    // What is joined has the time of the one that closes its group.
    if (!program.instructions[i].joined) {
      use.busy[static_cast<size_t>(op)] += interval.end - interval.start;
    }
    if (interval.end >= use.step) {
      use.step = interval.end;
      last = op;
    }
    if (QueueOf(op) != Queue::kCompute) continue;
    use.compute += interval.end - interval.start;
    double waited_until = compute_end;
    for (int32_t wait : InOrderOfBlame(program, waits[i], intervals)) {
      const auto w = static_cast<size_t>(wait);
      if (intervals[w].end <= waited_until) continue;
      use.waited[static_cast<size_t>(program.instructions[w].op)] +=
          intervals[w].end - waited_until;
      waited_until = intervals[w].end;
    }
    compute_end = interval.end;
  }
  use.waited[static_cast<size_t>(last)] += use.step - compute_end;
  return use;
}

}  // namespace esteira
