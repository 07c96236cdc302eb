// What a step means, apart from Validate: programs run on symbols instead of numbers.
//
// Every buffer of every rank holds a symbol (a hash of how it came about), stale and never written
// ones included. Ranks and queues take turns at random, held back by nothing but Dependencies, the
// queues' order and rendezvous, as in the engine; joined instructions take one turn
// together. Two plans mean the same when their final
// parameters, states and findings are the same symbols.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// The final state of `programs`, by stage, on all replicas; nullopt when they cannot be carried
// out: they block, or an operand is missing.
std::optional<std::vector<uint64_t>> RunSymbols(const Plan& plan,
                                                const std::vector<Program>& programs,
                                                uint64_t seed);

}  // namespace esteira
