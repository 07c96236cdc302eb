#include "worker/trainer/reports.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace esteira {

v1::MemoryProto EncodeMemory(const Device& device) {
  v1::MemoryProto memory;
  memory.set_parameters_bytes(device.peak_bytes(MemoryKind::kParameters));
  memory.set_gradients_bytes(device.peak_bytes(MemoryKind::kGradients));
  memory.set_optimizer_bytes(device.peak_bytes(MemoryKind::kOptimizer));
  memory.set_slots_bytes(device.peak_bytes(MemoryKind::kSlots));
  memory.set_workspace_bytes(device.peak_bytes(MemoryKind::kWorkspace));
  return memory;
}

std::string DescribeNonFinite(const NonFinite& place) {
  return absl::StrCat("rank ", place.rank, ", unit ", place.unit,
                      place.micro_batch < 0 ? ", in the reduced gradient"
                                            : absl::StrCat(", micro-batch ", place.micro_batch));
}

absl::Status StopAtNonFinite(const StepReport& report, int rank) {
  const std::string cause =
      absl::StrCat("step ", report.step, ": non-finite value first at ",
                   DescribeNonFinite(report.non_finite), "; training.on_non_finite is stop");
  if (rank == report.non_finite.rank) return absl::FailedPreconditionError(cause);
  return absl::AbortedError(
      absl::StrCat("stopped with rank ", report.non_finite.rank, ": ", cause));
}

v1::StepReportProto EncodeStep(const StepReport& report, int64_t epoch,
                               std::optional<double> validation_loss, const Device& device) {
  v1::StepReportProto proto;
  v1::StepRecord& record = *proto.mutable_record();
  record.set_step(report.step);
  record.set_loss(report.loss);
  record.set_gradient_norm(report.gradient_norm);
  record.set_loss_bits(Hex64(std::bit_cast<uint64_t>(report.loss)));
  record.set_gradient_norm_bits(Hex64(std::bit_cast<uint64_t>(report.gradient_norm)));
  record.set_learning_rate(report.learning_rate);
  record.set_tokens(report.tokens);
  record.set_valid_tokens(report.valid_tokens);
  record.set_skipped(report.skipped);
  if (report.non_finite.found) {
    record.set_skip_cause(
        absl::StrCat("non-finite value first at ", DescribeNonFinite(report.non_finite)));
  } else if (report.skipped) {
    record.set_skip_cause("no valid target in the global batch");
  }
  record.set_step_seconds(report.step_seconds);
  const double seconds = report.step_seconds;
  record.set_bubble_ratio(seconds > 0 ? report.bubble_seconds / seconds : 0);
  record.set_exposed_communication_ratio(seconds > 0 ? report.exposed_shard_seconds / seconds : 0);
  record.set_epoch(epoch);
  if (validation_loss) record.set_validation_loss(*validation_loss);
  if (report.parameter_hash_part) {
    proto.set_has_parameter_hash(true);
    proto.set_parameter_hash_part(*report.parameter_hash_part);
  }
  for (int op = 0; op < kNumOps; ++op) {
    const int64_t bytes = report.op_bytes[static_cast<size_t>(op)];
    if (bytes > 0) (*proto.mutable_bytes_moved())[OpName(static_cast<Op>(op))] = bytes;
    const double taken = report.op_seconds[static_cast<size_t>(op)];
    if (taken > 0) (*record.mutable_op_seconds())[OpName(static_cast<Op>(op))] = taken;
  }
  *proto.mutable_memory() = EncodeMemory(device);
  return proto;
}

bool IsConsequence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status);
}

v1::Failed EncodeFailure(const absl::Status& status, int64_t step) {
  v1::Failed failed;
  failed.set_code(static_cast<int32_t>(status.code()));
  failed.set_message(std::string(status.message()));
  failed.set_consequence(IsConsequence(status));
  failed.set_step(step);
  return failed;
}

}  // namespace esteira
