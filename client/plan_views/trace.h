// A step as a trace that Perfetto and chrome://tracing open: a process a stage, a thread a queue,
// an event an instruction, and arrows from each send to its receive. Pure.
#pragma once

#include <string>

#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace esteira {

// `execution` is of plan.train.
std::string ChromeTrace(const Plan& plan, const Execution& execution);

}  // namespace esteira
