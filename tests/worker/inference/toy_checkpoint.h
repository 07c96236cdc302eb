#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"

namespace esteira {

// Small models of which every parameter matters: no zero biases, no norm weights of one.
const std::vector<std::string>&
ToyNames();  // "gpt2", "gpt2_untied", "llama", "llama_tied", "llama_bf16"
JobSpec ToyJob(const std::string& name, const std::string& directory);

// Writes a checkpoint of the toy and `directory`/data.txt; returns the checkpoint's folder.
absl::StatusOr<std::string> WriteToyCheckpoint(const std::string& name,
                                               const std::string& directory);

}  // namespace esteira
