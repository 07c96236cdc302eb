#include "coordinator/controller/merge_step.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

absl::Status Disagreement(int64_t step, const char* what, size_t rank_a, double a, size_t rank_b,
                          double b) {
  return absl::InternalError(absl::StrCat("ranks disagree on the ", what, " of step ", step,
                                          ": rank ", rank_a, " has ", a, " (", BitsOf(a),
                                          "), rank ", rank_b, " has ", b, " (", BitsOf(b), ")"));
}

absl::Status CheckAgreement(size_t first_rank, const StepRecord& first, size_t rank,
                            const StepRecord& other) {
  if (!SameBits(first.loss, other.loss)) {
    return Disagreement(first.step, "loss", first_rank, first.loss, rank, other.loss);
  }
  if (!SameBits(first.gradient_norm, other.gradient_norm)) {
    return Disagreement(first.step, "gradient norm", first_rank, first.gradient_norm, rank,
                        other.gradient_norm);
  }
  if (first.valid_tokens != other.valid_tokens) {
    return Disagreement(first.step, "number of valid tokens", first_rank,
                        static_cast<double>(first.valid_tokens), rank,
                        static_cast<double>(other.valid_tokens));
  }
  if (first.validation_loss && other.validation_loss &&
      !SameBits(*first.validation_loss, *other.validation_loss)) {
    return Disagreement(first.step, "validation loss", first_rank, *first.validation_loss, rank,
                        *other.validation_loss);
  }
  return absl::OkStatus();
}

// What is a sum, a mean or a maximum over the ranks.
void Accumulate(const StepRecord& part, StepRecord& record) {
  record.step_seconds = std::max(record.step_seconds, part.step_seconds);
  record.bubble_ratio += part.bubble_ratio;
  record.exposed_communication_ratio += part.exposed_communication_ratio;
  for (size_t op = 0; op < part.op_seconds.size(); ++op) {
    record.op_seconds[op] += part.op_seconds[op];
  }
  record.skipped = record.skipped || part.skipped;
  if (record.skip_cause.empty()) record.skip_cause = part.skip_cause;
  if (!record.validation_loss) record.validation_loss = part.validation_loss;
}

void AccumulateMemory(const MemoryUse& part, StepRecord& record) {
  record.peak_bytes = std::max(record.peak_bytes, part.total());
  MemoryUse& peak = record.peak_memory;
  peak.parameters = std::max(peak.parameters, part.parameters);
  peak.gradients = std::max(peak.gradients, part.gradients);
  peak.optimizer = std::max(peak.optimizer, part.optimizer);
  peak.slots = std::max(peak.slots, part.slots);
  peak.workspace = std::max(peak.workspace, part.workspace);
}

void SetPrediction(const Prediction& prediction, StepRecord& record) {
  record.predicted_step_seconds = prediction.step_seconds;
  record.predicted_bubble_ratio = prediction.bubble_ratio;
  for (const MemoryUse& memory : prediction.memory) {
    record.predicted_peak_bytes = std::max(record.predicted_peak_bytes, memory.total());
  }
}

void SetRates(const StepContext& context, StepRecord& record) {
  if (record.step_seconds <= 0) return;
  record.tokens_per_second = static_cast<double>(record.tokens) / record.step_seconds;
  if (context.peak_flops > 0) {
    record.model_flops_utilization =
        record.tokens_per_second * context.flops_per_token / context.peak_flops;
  }
}

StepRecord StartRecord(const StepRecord& first, const StepContext& context) {
  StepRecord record;
  record.step = first.step;
  record.loss = first.loss;
  record.gradient_norm = first.gradient_norm;
  record.learning_rate = first.learning_rate;
  record.tokens = first.tokens;
  record.valid_tokens = first.valid_tokens;
  record.epoch = context.epoch;
  return record;
}

}  // namespace

absl::StatusOr<MergedStep> MergeStep(const std::vector<std::optional<StepPart>>& parts,
                                     const StepContext& context) {
  const auto first =
      std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.has_value(); });
  CHECK(first != parts.end());
  const size_t first_rank = static_cast<size_t>(first - parts.begin());
  MergedStep merged{StartRecord((*first)->record, context), {}};
  StepRecord& record = merged.record;
  uint64_t hash = 0;
  size_t num_parts = 0, num_hashes = 0;
  for (size_t rank = first_rank; rank < parts.size(); ++rank) {
    if (!parts[rank]) continue;
    const StepPart& part = *parts[rank];
    RETURN_IF_ERROR(CheckAgreement(first_rank, (*first)->record, rank, part.record));
    Accumulate(part.record, record);
    if (part.memory) AccumulateMemory(*part.memory, record);
    ++num_parts;
    if (part.hash_part) ++num_hashes;
    hash += part.hash_part.value_or(0);
    merged.sample_ids.insert(merged.sample_ids.end(), part.sample_ids.begin(),
                             part.sample_ids.end());
    if (context.with_memory) {
      record.memory.resize(parts.size());
      record.memory[rank] = part.memory.value_or(MemoryUse{});
    }
  }
  record.bubble_ratio /= static_cast<double>(num_parts);
  record.exposed_communication_ratio /= static_cast<double>(num_parts);
  merged.complete = num_parts == parts.size();
  if (num_hashes == parts.size()) record.parameter_hash = Hex64(hash);
  SetRates(context, record);
  if (context.prediction != nullptr) SetPrediction(*context.prediction, record);
  return merged;
}

}  // namespace esteira
