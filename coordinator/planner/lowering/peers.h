// Who is next to whom. Neighbouring units on one rank share a slot and send nothing, so no
// placement of chunks is a special case. Pure.
#pragma once

#include <optional>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// By compute unit: the rank of `replica` that holds it.
std::vector<int> RanksOfUnits(const Plan& plan, int replica);

// The send that follows a compute instruction on `rank`; none when its result stays there.
std::optional<Instruction> SendAfter(const std::vector<int>& rank_of_unit, int rank,
                                     const Instruction& instruction);

// The receive that belongs to a send.
Instruction ReceiveOf(const Instruction& send, int sender);

}  // namespace esteira
