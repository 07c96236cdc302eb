#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "worker/trainer/channel.h"
#include "worker/trainer/compute.h"

namespace esteira {

struct TrainerOptions {
  ComputeOptions compute;
  ComputeRates rates;                 // of `compute`, as the daemon knows them
  std::string network_device = "lo";  // of the data plane
};

// The process that runs the engine: one rank of one epoch, from Configure to the last step. It
// reads Configure, Start and Abort from `channel` and writes Ready, steps, checkpoints and, when it
// ends badly, Failed. It writes files only under the job's checkpoint directory. Blocks until the
// rank is done; the status is what Failed said.
absl::Status RunTrainer(Channel& channel, const TrainerOptions& options, Logger log);

}  // namespace esteira
