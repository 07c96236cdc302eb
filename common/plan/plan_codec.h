#pragma once

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace esteira::v1 {
class PlanProto;
}

namespace esteira {

v1::PlanProto EncodePlan(const Plan& plan);
// InvalidArgument when a field is out of its range or the digest does not match. Does not Validate.
absl::StatusOr<Plan> DecodePlan(const v1::PlanProto& proto);

}  // namespace esteira
