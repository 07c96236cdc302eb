#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "worker/engine/engine.h"

namespace esteira {

// Fills the times of `report` from when each instruction ran, in seconds from the start of the
// step; `step_seconds` is the end of the last. The compute queue is busy, or waits: for point to
// point (a bubble) or for the shard queue (exposed communication), whichever of what its next
// instruction waits for ended last; what follows its last instruction is exposed too. `waits`: by
// instruction, those that it waits for on other queues. Pure.
void AddTimes(const Program& program, const std::vector<std::vector<int32_t>>& waits,
              const std::vector<Interval>& intervals, StepReport& report);

}  // namespace esteira
