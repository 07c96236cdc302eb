// What step reports say about the cost model: the seconds that each kind of instruction took over
// those that the plan had predicted. Pure.
#pragma once

#include "coordinator/job/step_record.h"
#include "coordinator/planner/cluster.h"

namespace esteira {

// Moves `factors` a little towards measured over modelled. `record`: a step on the plan that
// predicted `prediction` with the factors `used`, with the reports of all its ranks. Only what runs
// on the compute queue counts, since the measured seconds of transfers hold the wait for the other
// side; and nothing is believed to differ by more than kMaxOpFactor.
void Refine(const OpFactors& used, const Prediction& prediction, const StepRecord& record,
            OpFactors& factors);

inline constexpr double kMaxOpFactor = 16;
inline constexpr double kRefineWeight = 0.2;  // of one step, in logarithms

}  // namespace esteira
