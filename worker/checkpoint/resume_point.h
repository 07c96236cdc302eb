#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/checkpoint/data_identity.h"
#include "common/checkpoint/run_comparison.h"
#include "common/checkpoint/trainer_state.h"
#include "common/plan/job_spec.h"
#include "worker/communication/transport.h"

namespace esteira {

// The checkpoint from which a job goes on.
struct ResumePoint {
  std::string folder;
  TrainerState state;
  std::vector<std::string> skipped;  // newer ones, each with what is wrong with it; rank 0 only
  Continuation continuation;         // the job that goes on, with the hyper-parameters that hold
};

// `micro_batch_size` is the layout's. Collective over all ranks of the epoch, which see one file
// system. Takes the newest checkpoint of job.checkpoint_directory that is whole: each file is read
// and its digest compared by one of the ranks, and a damaged checkpoint is passed over for the next
// older one. Every rank returns the same. Nothing when the directory holds no folder step-*;
// DataLoss names each fault when it holds some and none is whole; FailedPrecondition when the
// newest whole one is of another run (ContinueRun): going back behind it would hide that. What was
// passed over is set aside under the name damaged-step-*, so that the run can write checkpoints of
// these steps again.
absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const JobSpec& job,
                                                           int64_t micro_batch_size,
                                                           const std::vector<DataIdentity>& train,
                                                           FileSystem& files, Transport& transport,
                                                           absl::Duration timeout);

// "continues from step 20 (/ckpt/step-00000020); changed on resume: ...; as saved: ...; skipped
// because damaged: ...".
std::string DescribeResume(const ResumePoint& point);

}  // namespace esteira
