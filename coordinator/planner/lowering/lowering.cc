#include "coordinator/planner/lowering/lowering.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate.h"

namespace esteira {

const std::vector<Pass>& Passes() {
  static const auto& passes = *new std::vector<Pass>{
      {"expand", Phase::kExpanded, Expand}, {"point to point", Phase::kPointToPoint, PointToPoint},
      {"zero", Phase::kZero, Zero},         {"overlap", Phase::kOverlapped, Overlap},
      {"bucket", Phase::kJoined, Bucket},   {"slots", Phase::kSlots, Slots},
  };
  return passes;
}

absl::StatusOr<Plan> Lower(Plan generated, Phase phase) {
  Plan plan = std::move(generated);
  RETURN_IF_ERROR(Validate(plan, Phase::kGenerated));
  for (const Pass& pass : Passes()) {
    if (pass.phase > phase) break;
    ASSIGN_OR_RETURN(plan, pass.run(std::move(plan)));
    const absl::Status status = Validate(plan, pass.phase);
    if (!status.ok()) {
      return absl::InternalError(
          absl::StrCat("after the pass \"", pass.name, "\": ", status.message()));
    }
  }
  return plan;
}

}  // namespace esteira
