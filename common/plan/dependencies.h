// What each instruction waits for, derived from what it reads and writes. One function serves the
// validator, the simulator and the engine, so that they cannot disagree about order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// What an instruction can touch on its rank. Where no slot is numbered (before Phase::kSlots), each
// value has a buffer of its own: kActivationValue is unit's y (the next unit's x), kGradientValue
// its dy (the next unit's dx).
enum class ResourceKind : uint8_t {
  kActivationSlot,
  kGradientSlot,
  kSavedSlot,
  kParametersSlot,
  kWindowSlot,
  kActivationValue,  // of (unit, micro-batch), as the two below
  kGradientValue,
  kSavedValue,
  kGathered,    // a unit's parameters, gathered into a slot that is not numbered yet
  kParameters,  // what the rank keeps of a unit's parameters between steps: all of them, or its
                // shard
  kSums,        // gradient sums of a unit; also its window when that has no slot
  kStates,      // master weights and moments of a unit
  kFindings,    // loss, token counts and the first non-finite value, up to here
  kStepResult,  // what NORM found
};

struct Access {
  ResourceKind kind;
  int32_t index = 0;         // slot, or unit
  int32_t micro_batch = -1;  // of values
  bool write = false;        // or read and write
};

// For each instruction of a program, what it touches: the one statement of what the ops mean.
// RELEASE touches the slot that it frees, as a reader does. `units` are MakeUnits(model).
std::vector<std::vector<Access>> Accesses(const std::vector<UnitSpec>& units,
                                          const Placement& placement, const Program& program);

// For each instruction of a program, the instructions (by index, ascending, at most one a queue)
// that must have finished before it starts, besides those ahead of it on its own queue. Read after
// write, write after read, write after write. Works from Phase::kPointToPoint on. RELEASE waits for
// the last users of its slot, and nothing waits for a RELEASE.
std::vector<std::vector<int32_t>> Dependencies(const std::vector<UnitSpec>& units,
                                               const Placement& placement, const Program& program);

// The unit whose parameters buffer a rank holding `held` (ascending) uses for `unit`: the unit
// itself; for a tied table's head end on the rank of its owner, the owner.
int ParametersUnit(const std::vector<UnitSpec>& units, const std::vector<int>& held, int unit);

}  // namespace esteira
