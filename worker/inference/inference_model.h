#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/model_spec.h"
#include "worker/checkpoint/reader.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// A whole model on one CPU device, in fp32 whatever the stored weights are: forward only. Owns
// weights and scratch, which grows to the largest call. Not thread-safe. Knows no tokenizer.
class InferenceModel {
 public:
  // Device and kernels outlive the model.
  static absl::StatusOr<std::unique_ptr<InferenceModel>> Load(const CheckpointReader& reader,
                                                              Device& device, Kernels& kernels);

  const ModelSpec& spec() const { return spec_; }
  // The logits [vocab_size] of the token that follows `tokens`: 1 to max_sequence_length of them.
  absl::StatusOr<std::vector<float>> NextLogits(std::span<const int32_t> tokens);
  // The summed loss over the valid targets of [batch, sequence] tokens.
  absl::StatusOr<LossSums> Loss(int64_t sequence, std::span<const int32_t> inputs,
                                std::span<const int32_t> targets);

 private:
  InferenceModel(const ModelSpec& spec, Device& device, Kernels& kernels);
  absl::Status LoadWeights(const CheckpointReader& reader);
  // Makes every scratch buffer large enough for [batch, sequence] tokens.
  absl::Status Reserve(int64_t batch, int64_t sequence);
  absl::Status Grow(Buffer& buffer, int64_t bytes);
  UnitArguments Arguments(int unit, int64_t batch, int64_t sequence) const;
  // Embedding and blocks; the last hidden states are left in x_ and on the stream.
  void RunBody(int64_t batch, int64_t sequence);

  ModelSpec spec_;
  Device& device_;
  Kernels& kernels_;
  std::vector<UnitSpec> units_;
  std::vector<std::unique_ptr<UnitCompute>> computes_;  // by compute unit
  std::vector<Buffer> weights_;  // by unit; a tied head end has none of its own
  Buffer tokens_, targets_, x_, y_, workspace_, head_saved_, loss_;
  std::unique_ptr<Stream> stream_;  // last: its work uses all above
};

}  // namespace esteira
