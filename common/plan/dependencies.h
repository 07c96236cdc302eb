// What each instruction waits for, derived from what it reads and writes. One function serves the validator, the
// simulator and the engine, so that they cannot disagree about order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// What an instruction can touch on its rank.
enum class ResourceKind : uint8_t {
  kSlot,        // index: slot kind and number
  kParameters,  // of a unit, as last gathered or updated
  kWindow,      // gradient window of a unit
  kSums,        // gradient sums of a unit
  kStates,      // master weights and moments of a unit
  kStepResult,  // what NORM found
};
struct Access {
  ResourceKind kind;
  int32_t index;
  bool write;
};

// For each instruction of a program, the instructions (by index, ascending) that must have finished before it starts,
// besides those ahead of it on its own queue. Read after write, write after read, write after write.
// `units` are MakeUnits(model). Slots that are -1 take no part, so it works from Phase::kPointToPoint on.
std::vector<std::vector<int32_t>> Dependencies(const std::vector<UnitSpec>& units, const Placement& placement,
                                               const Program& program);

}  // namespace esteira
