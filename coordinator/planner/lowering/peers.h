// Who is next to whom. Neighbouring units on one stage share a slot and send nothing, so no
// placement of chunks is a special case. Pure.
#pragma once

#include <optional>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// By compute unit: the stage that holds it.
std::vector<int> StagesOfUnits(const Plan& plan);

// The send that follows a compute instruction on `stage`; none when its result stays there.
std::optional<Instruction> SendAfter(const std::vector<int>& stage_of_unit, int stage,
                                     const Instruction& instruction);

// The receive that belongs to a send.
Instruction ReceiveOf(const Instruction& send, int sender);

}  // namespace esteira
