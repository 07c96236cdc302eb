#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace esteira {

// Whether a plan can be carried out, and computes each layer of each micro-batch exactly once.
// Pure. The planner calls it before the first pass and after each; the worker calls it again on
// what it receives.
//
// Checks, each named in its error ("coverage: ..."), with the phase from which it holds:
//   structure   always: sizes fit the layout, each stage holds its chunks,
//               instructions name what their stage holds, with operands in range, and are of this
//               phase
//   coverage    always: every (unit, micro-batch) has one F, and one B or one I then W, after its
//               F; from kExpanded with recompute one R of every block between; evaluate programs
//               have F only
//   order       always: a unit's weight gradients are added in micro-batch order; F and B follow
//               the data flow between
//               units on one stage; from kPointToPoint an instruction is between its receive and
//               its send
//   peers       kPointToPoint: point to point names the stage that holds the neighbouring unit,
//               another than this one; TIE_* the stage of the other end
//   pairing     kPointToPoint: sends and receives match one to one between stages, in unit,
//               micro-batch and direction
//   deadlock    kPointToPoint: the plan finishes on a machine with rendezvous sends and FIFO queues
//   gathered    kZero: parameters are gathered (or whole) when used, released once, and up to date
//               after STEP
//   reduction   kZero: each window is cleared before its first W and reduced after its last; every
//               unit is reduced before NORM, of which there is one, all compute ops stand before
//               NORM, NORM before every STEP, each owned unit is stepped once; a tied table's ends
//               are added and copied
//   joins       kZero: what is joined has the same op next on its queue, is small enough and not
//               waited for in the midst of its group; nothing is joined before kJoined
//   slots       kSlots: operands are in their slots when used, no live slot is overwritten, every
//               slot is empty at the end, numbers are below the number of slots, slots are large
//               enough for what is put into them, both programs of a stage have the same slots
//   memory      (only with a budget) a rank's peak is within it
//
// What one replica does, all do; so that their collectives meet needs no check.
//
// Returns InvalidArgument: check, stage, position and text of the instruction at fault, and what
// was expected. The first fault is reported. The time is linear in the size of the plan, whatever
// the plan.
absl::Status Validate(const Plan& plan, Phase phase = kLowered);

// The memory check of a plan that Validate accepts. `budget_bytes` of one rank, by stage.
// ResourceExhausted names the stage and what its ranks need memory for.
absl::Status ValidateMemory(const Plan& plan, const std::vector<int64_t>& budget_bytes);

// The part of CountMemory that lasts from step to step: parameters, gradients and optimizer states
// of a rank that holds the units `held` (ascending). `units` are MakeUnits(model).
MemoryUse CountStates(const std::vector<UnitSpec>& units, const std::vector<int>& held,
                      const Layout& layout, Precision precision);

// Exact numerics form the gradient of one (unit, micro-batch) in fp32 before it is added up: the
// room for it, of the held unit that uses the most parameters; 0 when numerics are fast.
int64_t GradientScratchBytes(const std::vector<UnitSpec>& units, const std::vector<int>& held,
                             const Layout& layout);

// Sets the bytes of every slot class of a lowered plan from what its programs put into the slots.
void SizeSlots(Plan& plan);

// Bytes of one rank by the slot classes, placement and unit sizes of a lowered plan. `train` is the
// program of its stage; `evaluate` runs in the same slots.
MemoryUse CountMemory(const Plan& plan, const Program& train);

}  // namespace esteira
