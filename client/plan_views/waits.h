// Where the ranks' time goes, as a sentence. Pure.
#pragma once

#include <string>

#include "coordinator/planner/planner.h"

namespace esteira {

// "utilization 84.2 %; waits: RECV_ACT 6.1 %, NORM 3.0 %; not hidden: GATHER 0.2 %": shares of the
// step, averaged over the ranks, the largest first. Waits for other stages, then communication that
// computation could hide. What is below 0.05 % is left out.
std::string WaitsText(const Simulation& simulation);

}  // namespace esteira
