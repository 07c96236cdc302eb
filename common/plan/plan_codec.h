#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace esteira::v1 {
class LayoutProto;
class MemoryProto;
class PlanProto;
class PredictionProto;
}  // namespace esteira::v1

namespace esteira {

// Ranks that a job may ask for.
inline constexpr int64_t kMaxRanks = 65536;

v1::PlanProto EncodePlan(const Plan& plan);
// InvalidArgument when a field is out of its range or the digest does not match. Does not Validate.
absl::StatusOr<Plan> DecodePlan(const v1::PlanProto& proto);

// The message as it is sent, compressed: a plan repeats itself, and every rank gets all of it.
std::string PackPlan(const v1::PlanProto& proto);
// InvalidArgument when the bytes are damaged, or unpack to more than kMaxUnpackedPlanBytes. What is
// cut off can pass as a shorter plan here; DecodePlan finds it by the digest.
absl::StatusOr<v1::PlanProto> UnpackPlan(const std::string& bytes);
inline constexpr int kMaxUnpackedPlanBytes = 256 << 20;

// Parts that travel without their plan too. Decoding them checks nothing.
void EncodeLayout(const Layout& layout, v1::LayoutProto& proto);
Layout DecodeLayout(const v1::LayoutProto& proto);
void EncodePrediction(const Prediction& prediction, v1::PredictionProto& proto);
Prediction DecodePrediction(const v1::PredictionProto& proto);
void EncodeMemory(const MemoryUse& memory, v1::MemoryProto& proto);
MemoryUse DecodeMemory(const v1::MemoryProto& proto);

}  // namespace esteira
