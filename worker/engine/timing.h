#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "worker/engine/engine.h"

namespace esteira {

// Fills the times of `report` by common/plan/time_use.h. Pure.
void AddTimes(const Program& program, const std::vector<std::vector<int32_t>>& waits,
              const std::vector<Interval>& intervals, StepReport& report);

}  // namespace esteira
