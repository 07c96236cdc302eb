#pragma once

#include "common/plan/plan.h"
#include "coordinator/planner/schedules/csv.h"

namespace esteira {

// The schedule that a plan carries out, chunk by chunk, read from its first replica. Recomputation
// is no part of a schedule.
PipelineOps PipelineOf(const Plan& plan);

}  // namespace esteira
