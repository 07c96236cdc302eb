// Where the time of a step went on one rank: the same sum for a simulated and for a measured step.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace esteira {

// Whether a wait for this op is one for what another stage computes; else it is for communication
// that computation could hide.
bool WaitsForStages(Op op);

// The compute queue is busy, or its next instruction waits; then the time belongs to the ops that
// it waited for: other stages first, and communication where it took longer than those. Seconds.
struct TimeUse {
  double step = 0;  // end of the last instruction
  double compute = 0;
  std::array<double, kNumOps> busy{};    // by op, on every queue
  std::array<double, kNumOps> waited{};  // by the op that was waited for; what follows the last
                                         // compute instruction is by what ended last
  // Waits for what other stages compute: point to point, NORM, TIE_GRAD.
  double bubble() const;
  // Waits for communication that computation could hide: GATHER, REDUCE, TIE_PARAM.
  double exposed_communication() const;
};

// `waits`: by instruction, those that it waits for on other queues (Dependencies). `intervals`: by
// instruction, in seconds from the start of the step.
TimeUse MeasureTimeUse(const Program& program, const std::vector<std::vector<int32_t>>& waits,
                       const std::vector<Interval>& intervals);

}  // namespace esteira
