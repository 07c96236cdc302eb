// What a trainer tells its daemon: pure conversions from the engine's values to the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "esteira/v1/worker.pb.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"

namespace esteira {

// Peak bytes of each kind on `device`.
v1::MemoryProto EncodeMemory(const Device& device);

// "rank 2, unit 3, micro-batch 1".
std::string DescribeNonFinite(const NonFinite& place);

// How `rank` ends after a step with a non-finite value: the rank where it appeared first fails, the
// others are stopped with it.
absl::Status StopAtNonFinite(const StepReport& report, int rank);

v1::StepReportProto EncodeStep(const StepReport& report, int64_t epoch,
                               std::optional<double> validation_loss, const Device& device);

// Whether this failure is an echo of another rank's.
bool IsConsequence(const absl::Status& status);

v1::Failed EncodeFailure(const absl::Status& status, int64_t step);

}  // namespace esteira
