#include "worker/trainer/setup.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/plan/job_codec.h"
#include "common/plan/plan_codec.h"
#include "common/plan/validate.h"
#include "esteira/v1/plan.pb.h"
#include "worker/checkpoint/directory.h"
#include "worker/launch_check/launch_check.h"

namespace esteira {
namespace {

absl::Status OpenData(Setup& setup) {
  ASSIGN_OR_RETURN(setup.train, DataSet::Open(setup.job.train, setup.job, true));
  if (!setup.job.checkpoint_directory.empty()) {
    RealFileSystem files;
    ASSIGN_OR_RETURN(setup.train_identity, IdentifyData(files, setup.job.train));
  }
  if (!setup.job.validation.empty()) {
    ASSIGN_OR_RETURN(setup.validation, DataSet::Open(setup.job.validation, setup.job, false));
  }
  return absl::OkStatus();
}

// A directory that cannot be written would be found out by the first save, a training too late.
absl::Status OpenCheckpointDirectory(Setup& setup) {
  const std::string& directory = setup.job.checkpoint_directory;
  if (directory.empty() || setup.plan.layout.ReplicaOfRank(setup.rank) != 0) {
    return absl::OkStatus();
  }
  RealFileSystem files;
  RETURN_IF_ERROR(ProbeDirectory(files, directory, setup.rank));
  if (setup.rank != 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(setup.checkpoint_lock, LockDirectory(files, directory));
  return absl::OkStatus();
}

// By rank 0 for all: the others would find the same.
absl::Status RunLaunchCheck(Setup& setup) {
  const LaunchCheck check = setup.job.check;
  if (check == LaunchCheck::kOff || setup.rank != 0) return absl::OkStatus();
  const absl::Time begin = absl::Now();
  LaunchCheckOptions options;
  if (check == LaunchCheck::kAuto) options.most_ranks = kMostRanksOfAutoCheck;
  ASSIGN_OR_RETURN(const LaunchCheckReport report, CheckLaunch(setup.job, setup.plan, options));
  setup.launch_check = absl::StrFormat(
      "launch check passed: two steps at toy width, %d ranks%s, equal one rank's (%.1f s)",
      report.ranks,
      report.replicas_left_out > 0
          ? absl::StrCat(" (", report.replicas_left_out, " replicas left out; check: full has all)")
          : "",
      absl::ToDoubleSeconds(absl::Now() - begin));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Setup> MakeSetup(const v1::Configure& configure, const TrainerOptions& options) {
  Setup setup;
  std::vector<Fault> faults;
  setup.job = DecodeJob(configure.spec(), faults);
  RETURN_IF_ERROR(FaultsStatus(faults));
  ASSIGN_OR_RETURN(const v1::PlanProto plan, UnpackPlan(configure.plan()));
  ASSIGN_OR_RETURN(setup.plan, DecodePlan(plan));
  RETURN_IF_ERROR(Validate(setup.plan));
  setup.rank = configure.rank();
  if (setup.rank < 0 || setup.rank >= setup.plan.layout.num_ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", setup.rank, " is not one of the plan's ", setup.plan.layout.num_ranks()));
  }
  setup.epoch = configure.epoch();
  setup.job_id = configure.job_id();
  setup.operation_timeout = absl::Milliseconds(configure.operation_timeout_ms());
  RETURN_IF_ERROR(OpenCheckpointDirectory(setup));
  RETURN_IF_ERROR(OpenData(setup));
  RETURN_IF_ERROR(RunLaunchCheck(setup));
  ASSIGN_OR_RETURN(setup.compute, MakeCompute(options.compute));
  ASSIGN_OR_RETURN(setup.endpoint, OpenUcx({.job_id = setup.job_id,
                                            .epoch = setup.epoch,
                                            .rank = setup.rank,
                                            .size = setup.plan.layout.num_ranks(),
                                            .network_device = options.network_device}));
  return setup;
}

}  // namespace esteira
