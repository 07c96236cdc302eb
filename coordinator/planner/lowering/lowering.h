// From a layout to what the ranks of every stage do, as a list of pure passes, one file each. Every
// decision about peers, ZeRO placement and buffers is made here; nothing is decided at run time.
//
// Generate makes the plan that the first pass starts from. Each pass takes a plan that stands at
// the phase before its own and returns one that stands at its own. Lower runs them all and
// Validates before the first and after each.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

// Compute instructions on chunks as `pipeline` has them; held units of every stage.
// InvalidArgument when the layout's numbers, or the pipeline's, do not fit each other.
absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision,
                              const PipelineOps& pipeline);
// By the name of the layout's schedule.
absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision);

absl::StatusOr<Plan> Expand(Plan plan);  // chunks -> units; recomputation
absl::StatusOr<Plan> PointToPoint(
    Plan plan);                           // sends to neighbours on other stages, and their receives
absl::StatusOr<Plan> Zero(Plan plan);     // sharding and the end of the step
absl::StatusOr<Plan> Overlap(Plan plan);  // communication starts earlier or ends later
absl::StatusOr<Plan> Bucket(Plan plan);   // small units share a round of messages
absl::StatusOr<Plan> Slots(Plan plan);    // buffers are numbered and counted

struct Pass {
  const char* name;
  Phase phase;  // where the plan stands after it
  absl::StatusOr<Plan> (*run)(Plan plan);
};
const std::vector<Pass>& Passes();

// The passes up to `phase`. An error that Validate finds after a pass names the pass.
absl::StatusOr<Plan> Lower(Plan generated, Phase phase = kLowered);

// The units of a stage, ascending, ends of a tied table included.
std::vector<int> HeldUnits(const ModelSpec& model, const Layout& layout,
                           const PipelineOps& pipeline, int stage);

// The most that the members of one group move, unless one alone is larger.
inline constexpr int64_t kBucketBytes = int64_t{1} << 20;

// Whether values of this size are too small for the slots of a size class, which are `largest`.
constexpr bool OpensSizeClass(int64_t size, int64_t largest) { return 2 * size < largest; }

// Whether a stage's gradient windows are buffers of their own: sums are sharded, or a step has more
// than one window.
bool HasWindowSlots(const Layout& layout, int stage);

}  // namespace esteira
