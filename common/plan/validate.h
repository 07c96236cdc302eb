#pragma once

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace esteira {

// Whether a plan can be carried out, and computes each layer of each micro-batch exactly once. Pure. The planner calls it
// before the first pass and after each; the worker calls it again on what it receives.
//
// Checks, each named in its error ("coverage: ..."), at the phase from which it holds:
//   coverage    every (unit, micro-batch) has one F, and one B or one I then W, after its F; with recompute one R between;
//               evaluate programs have F only
//   order       a unit's weight gradients are added in micro-batch order; F and B follow the units' data flow
//   peers       point to point names the rank that holds the neighbouring unit
//   pairing     sends and receives match one to one between ranks, in unit, micro-batch and direction
//   slots       operands are in their slots when used, no live slot is overwritten, every slot is empty at the end,
//               numbers are below the class's count
//   gathered    parameters are gathered (or whole) when used, released once, and up to date after STEP
//   reduction   each window is cleared before its first W and reduced after its last; every unit is reduced before NORM,
//               NORM stands before every STEP, each owned unit is stepped once; a tied table's ends are added and copied
//   replicas    the replicas of a stage issue the same collectives in the same order; all ranks issue one NORM
//   deadlock    the plan finishes on a machine with rendezvous sends and FIFO queues
//   memory      (only with a budget) a rank's predicted peak is within it
//
// Returns InvalidArgument: check, rank, position and text of the instruction at fault, and what was expected.
absl::Status Validate(const Plan& plan, Phase phase = kLowered);

// The memory check. `budget_bytes` by rank.
absl::Status ValidateMemory(const Plan& plan, const std::vector<int64_t>& budget_bytes);

// Bytes of each rank by the slot classes, placement and unit sizes of a lowered plan.
MemoryUse CountMemory(const Plan& plan, const Program& train, const Program& evaluate);

}  // namespace esteira
