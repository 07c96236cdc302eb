// What a job that goes on from a checkpoint may change, and which values hold from there on. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/data_identity.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/trainer_state.h"
#include "common/plan/job_spec.h"

namespace esteira {

// A run, as a checkpoint describes it.
struct RunDescription {
  ModelConfig config;
  TrainerState state;
};

// How a job goes on from a checkpoint.
struct Continuation {
  JobSpec job;  // with the hyper-parameters that hold; steps, the last to train, is the job's own
  // "training.dropout 0.1 -> 0.2 (--set)".
  std::vector<std::string> changed;
  // "training.dropout stays 0.1 (the job file gives 0.2; --set training.dropout=0.2 would change
  // it)".
  std::vector<std::string> kept;
};

// Of hyper-parameters that differ (optimizer, schedule and the steps that it spans, clipping,
// dropout) the saved run's hold, but for those in job.set_fields. FailedPrecondition, with both
// values of every such field: what would make it another run (the model, the data, the tokenizer,
// the seed, the global batch size, the sequence length); another precision, numerics or gradient
// traffic that is not in set_fields; a checkpoint beyond the job's last step. `micro_batch_size` is
// the layout's; `train`: as IdentifyData told it.
absl::StatusOr<Continuation> ContinueRun(const RunDescription& saved, const JobSpec& job,
                                         int64_t micro_batch_size,
                                         const std::vector<DataIdentity>& train);

}  // namespace esteira
