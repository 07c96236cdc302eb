// Hugging Face's config.json of the models that are built in.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/model_spec.h"

namespace esteira {

inline constexpr char kModelConfigName[] = "config.json";

struct ModelConfig {
  ModelSpec model;
  Precision precision = Precision::kFp32;  // of the stored weights
  bool operator==(const ModelConfig&) const = default;
};

// For GPT2LMHeadModel or LlamaForCausalLM, such that `transformers` computes what we compute.
std::string PrintModelConfig(const ModelConfig& config);

// Reads it back, or one that `transformers` wrote, with its defaults for what is absent. DataLoss
// for a broken file; Unimplemented for what would compute something else (another model type,
// activation, biases, scaled positions).
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text);

}  // namespace esteira
