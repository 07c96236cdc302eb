#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/data_identity.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "esteira/v1/worker.pb.h"
#include "worker/communication/ucx/ucx_transport.h"
#include "worker/data/data_set.h"
#include "worker/trainer/compute.h"
#include "worker/trainer/trainer.h"

namespace esteira {

// Everything that a rank has before it knows its peers. Made in one go, so that a bad file or a bad
// plan is reported before anything waits for it.
struct Setup {
  JobSpec job;
  Plan plan;
  int rank = 0;
  int64_t epoch = 0;
  std::string job_id;
  absl::Duration operation_timeout;
  Compute compute;
  std::unique_ptr<DataSet> train, validation;  // validation: null when the job has none
  std::vector<DataIdentity> train_identity;    // of a job with a checkpoint directory
  std::string launch_check;  // rank 0: what the launch check found; empty: it was off
  std::unique_ptr<UcxEndpoint> endpoint;
  std::unique_ptr<FileLock> checkpoint_lock;  // rank 0 of a job that writes checkpoints
};

absl::StatusOr<Setup> MakeSetup(const v1::Configure& configure, const TrainerOptions& options);

}  // namespace esteira
