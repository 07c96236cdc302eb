// From a layout to what every rank does, as a list of pure passes, one file each. Every decision
// about peers, ZeRO placement and buffers is made here; nothing is decided at run time.
//
// Generate makes the plan that the first pass starts from. Each pass takes a plan that stands at
// the phase before its own and returns one that stands at its own. Lower runs them all and
// Validates before the first and after each.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace esteira {

// Compute instructions on chunks, by the layout's schedule; held units and micro-batches of every
// rank. InvalidArgument when the schedule is not known or the layout's numbers do not fit each
// other.
absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision);

absl::StatusOr<Plan> Expand(Plan plan);  // chunks -> units; recomputation
absl::StatusOr<Plan> PointToPoint(
    Plan plan);                           // sends to neighbours on other ranks, and their receives
absl::StatusOr<Plan> Zero(Plan plan);     // sharding and the end of the step
absl::StatusOr<Plan> Overlap(Plan plan);  // communication starts earlier or ends later
absl::StatusOr<Plan> Slots(Plan plan);    // buffers are numbered and counted

struct Pass {
  const char* name;
  Phase phase;  // where the plan stands after it
  absl::StatusOr<Plan> (*run)(Plan plan);
};
const std::vector<Pass>& Passes();

// The passes up to `phase`. An error that Validate finds after a pass names the pass.
absl::StatusOr<Plan> Lower(Plan generated, Phase phase = kLowered);

// Whether gradient windows are buffers of their own: sums are sharded, or a step has more than one
// window.
bool HasWindowSlots(const Layout& layout);

}  // namespace esteira
