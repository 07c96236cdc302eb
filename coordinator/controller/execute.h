#pragma once

#include "coordinator/controller/decide.h"
#include "coordinator/controller/turn.h"

namespace esteira {

// Carries one action out: state, writes and commands, all in `turn`. LaunchJob plans, which may
// take its time.
void Execute(Turn& turn, JobPlanner& planner, const Action& action);

}  // namespace esteira
