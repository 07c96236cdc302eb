// What a job that goes on from a checkpoint may change, and what it may not. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/trainer_state.h"

namespace esteira {

// A run, as a checkpoint or a job describes it.
struct RunDescription {
  ModelConfig config;
  TrainerState state;
};

// The new job's hyper-parameters win; each that differs from the saved one is in the result, e.g.
// "adamw.learning_rate 0.001 -> 0.0005". What would make it another run (the model, the data, the
// tokenizer, the seed, the global batch size, the sequence length) is refused: FailedPrecondition
// names every such field with both values. So is a checkpoint beyond the job's last step.
absl::StatusOr<std::vector<std::string>> CompareRuns(const RunDescription& saved,
                                                     const RunDescription& job);

}  // namespace esteira
