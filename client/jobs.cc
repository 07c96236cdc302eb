#include <algorithm>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/job_file.h"
#include "client/measured.h"
#include "client/render.h"
#include "client/server.h"
#include "common/base/status_macros.h"
#include "common/rpc/json.h"

namespace esteira {
namespace {

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

std::string LayoutText(const v1::Job& job) {
  if (!job.has_layout()) return "-";
  const v1::LayoutProto& layout = job.layout();
  return absl::StrCat(layout.stages(), " stages x ", layout.replicas(), " replicas, ZeRO ",
                      layout.zero(), ", ", layout.schedule());
}

void PrintPrediction(const v1::Job& job) {
  std::cout << absl::StrFormat("Predicted    %s a step, bubble %.1f %%\n",
                               FormatSeconds(job.prediction().step_seconds()),
                               100 * job.prediction().bubble_ratio());
}

// `steps`: the latest, without the first of the job, which is slower than others.
void PrintDescription(const v1::Job& job, const std::vector<v1::StepRecord>& steps) {
  std::cout << "Id           " << job.id() << "\n"
            << "Name         " << job.spec().name() << "\n"
            << "State        " << StateName(job.state())
            << (job.reason().empty() ? "" : " (" + job.reason() + ")") << "\n"
            << "Message      " << job.message() << "\n"
            << "Layout       " << LayoutText(job) << "\n"
            << "Steps        " << job.step() << " of " << job.spec().training().steps() << "\n";
  if (job.step() > 0) std::cout << absl::StrFormat("Loss         %.6f\n", job.loss());
  if (job.validation_loss() > 0)
    std::cout << absl::StrFormat("Validation   %.6f\n", job.validation_loss());
  if (job.has_prediction() && steps.empty()) PrintPrediction(job);
  for (int rank = 0; rank < job.workers_size(); ++rank) {
    std::cout << (rank == 0 ? "Workers      " : "             ") << "rank " << rank << ": "
              << job.workers(rank) << "\n";
  }
  for (const v1::FailureReport& failure : job.failures()) {
    std::cout << (failure.consequence() ? "Consequence  " : "Cause        ") << "worker "
              << failure.worker() << " (rank " << failure.rank() << ", step " << failure.step()
              << "): " << failure.cause() << "\n";
  }
  const std::vector<std::vector<std::string>> measured = PredictedAndMeasured(job, steps);
  if (!measured.empty()) {
    std::cout << "Predicted and measured (" << steps.size()
              << (steps.size() == 1 ? " step)\n" : " steps)\n");
    PrintTable(measured, std::cout);
  }
  std::cout << "Events\n";
  for (const v1::JobTransition& event : job.transitions()) {
    std::cout << "  " << absl::FormatTime("%H:%M:%S", ToTime(event.time()), absl::LocalTimeZone())
              << "  " << StateName(event.state()) << "  " << event.message() << "\n";
  }
}

absl::StatusOr<v1::Job> SubmitToServer(const SubmitOptions& options, const JobFile& file) {
  ASSIGN_OR_RETURN(const std::string server, ResolveServer(options.server));
  v1::SubmitJobRequest request;
  *request.mutable_spec() = file.proto;
  if (!options.name.empty()) request.mutable_spec()->set_name(options.name);
  request.set_request_id(options.request_id);
  request.set_priority(options.priority);
  request.set_validate_only(options.dry_run);
  v1::SubmitJobResponse response;
  RETURN_IF_ERROR(Connection(server).Submit(request, response));
  return response.job();
}

void PrintSubmitted(const SubmitOptions& options, const v1::Job& job) {
  if (options.output == Output::kJson) {
    std::cout << ToPrettyJson(job) << std::endl;
  } else if (options.dry_run) {
    std::cout << "The job is valid (" << LayoutText(job) << "); nothing was submitted."
              << std::endl;
  } else if (options.output == Output::kId) {
    std::cout << job.id() << std::endl;
  } else {
    std::cout << "Submitted job " << job.id() << "." << std::endl;
  }
}

// Calls `act` with a connection, and turns its status into an exit code.
template <typename Action>
ExitCode WithConnection(const std::string& server_flag, const Action& act) {
  const absl::StatusOr<std::string> server = ResolveServer(server_flag);
  if (!server.ok()) return ReportError(server.status());
  const absl::Status status = act(Connection(*server));
  return status.ok() ? kExitOk : ReportError(status);
}

void PrintJobs(const std::vector<v1::Job>& jobs) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "STATE", "STEP", "LOSS", "AGE", "MESSAGE"}};
  const absl::Time now = absl::Now();
  for (const v1::Job& job : jobs) {
    rows.push_back({job.id(), job.spec().name(), StateName(job.state()),
                    absl::StrCat(job.step(), "/", job.spec().training().steps()),
                    job.step() > 0 ? absl::StrFormat("%.4f", job.loss()) : "-",
                    FormatAge(job.submit_time(), now), job.message()});
  }
  PrintTable(rows, std::cout);
}

// The last few steps, without the job's first when there are others.
absl::StatusOr<std::vector<v1::StepRecord>> LatestSteps(const Connection& connection,
                                                        const v1::Job& job) {
  constexpr int64_t kSteps = 10;
  std::vector<v1::StepRecord> steps;
  if (job.step() == 0) return steps;
  v1::ReadStepsRequest request;
  request.set_id(job.id());
  request.set_first_step(std::max<int64_t>(job.step() - kSteps + 1, job.step() > 1 ? 2 : 1));
  RETURN_IF_ERROR(connection.ReadSteps(request, [&](const v1::StepRecord& step) {
    steps.push_back(step);
    return true;
  }));
  return steps;
}

}  // namespace

ExitCode Submit(const SubmitOptions& options) {
  const absl::StatusOr<JobFile> file = ReadJobFile(options.file, options.overrides);
  if (!file.ok()) return ReportError(file.status());
  const absl::StatusOr<v1::Job> job = SubmitToServer(options, *file);
  if (!job.ok()) return ReportError(job.status());
  PrintSubmitted(options, *job);
  if (!options.follow || options.dry_run) return kExitOk;
  return FollowJob(options.server, job->id(),
                   options.output == Output::kTable ? ProgressTo::kStdout : ProgressTo::kStderr);
}

ExitCode ListJobs(const JobOptions& options) {
  return WithConnection(options.server, [&](const Connection& connection) -> absl::Status {
    std::vector<v1::Job> jobs;
    v1::ListJobsRequest request;
    do {
      v1::ListJobsResponse response;
      RETURN_IF_ERROR(connection.List(request, response));
      jobs.insert(jobs.end(), response.jobs().begin(), response.jobs().end());
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    if (options.output == Output::kJson) {
      v1::ListJobsResponse all;
      all.mutable_jobs()->Add(jobs.begin(), jobs.end());
      std::cout << ToPrettyJson(all) << "\n";
    } else {
      PrintJobs(jobs);
    }
    return absl::OkStatus();
  });
}

ExitCode DescribeJob(const JobOptions& options) {
  return WithConnection(options.server, [&](const Connection& connection) -> absl::Status {
    v1::Job job;
    RETURN_IF_ERROR(connection.Get(options.job, job));
    if (options.output == Output::kJson) {
      std::cout << ToPrettyJson(job) << "\n";
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const std::vector<v1::StepRecord> steps, LatestSteps(connection, job));
    PrintDescription(job, steps);
    return absl::OkStatus();
  });
}

ExitCode CancelJob(const JobOptions& options) {
  return WithConnection(options.server, [&](const Connection& connection) -> absl::Status {
    v1::Job job;
    RETURN_IF_ERROR(connection.Cancel(options.job, job));
    std::cout << "Job " << job.id() << " is " << StateName(job.state()) << ".\n";
    return absl::OkStatus();
  });
}

ExitCode ListCheckpoints(const JobOptions& options) {
  if (IsCheckpointFolder(options.job)) return ListCheckpointFolders(options.job, options.output);
  return WithConnection(options.server, [&](const Connection& connection) -> absl::Status {
    v1::ListCheckpointsResponse response;
    RETURN_IF_ERROR(connection.ListCheckpoints(options.job, response));
    if (options.output == Output::kJson) {
      std::cout << ToPrettyJson(response) << "\n";
      return absl::OkStatus();
    }
    std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "AGE", "SAVE", "STALL", "PATH"}};
    for (const v1::CheckpointInfo& checkpoint : response.checkpoints()) {
      rows.push_back({absl::StrCat(checkpoint.step()), FormatBytes(checkpoint.bytes()),
                      FormatAge(checkpoint.time(), absl::Now()),
                      FormatSeconds(checkpoint.save_seconds()),
                      FormatSeconds(checkpoint.stall_seconds()), checkpoint.path()});
    }
    PrintTable(rows, std::cout);
    return absl::OkStatus();
  });
}

ExitCode WaitForJob(const WaitOptions& options) {
  v1::JobState wanted = v1::JOB_STATE_UNSPECIFIED;
  const std::string& name = options.state;
  if (!name.empty() && !v1::JobState_Parse(name, &wanted)) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--for ", options.state,
                     ": not a state of a job (QUEUED, RUNNING, SUCCEEDED, FAILED, ...)")));
  }
  const absl::StatusOr<std::string> server = ResolveServer(options.server);
  if (!server.ok()) return ReportError(server.status());
  const absl::Time deadline = options.timeout_seconds > 0
                                  ? absl::Now() + absl::Seconds(options.timeout_seconds)
                                  : absl::InfiniteFuture();
  v1::Job last;
  bool reached = false;
  const absl::Status status =
      Connection(*server).Watch(options.job, deadline, [&](const v1::JobEvent& event) {
        if (event.has_job()) last = event.job();
        reached =
            wanted == v1::JOB_STATE_UNSPECIFIED ? IsTerminal(last.state()) : last.state() == wanted;
        return !reached && !IsTerminal(last.state());
      });
  if (absl::IsDeadlineExceeded(status)) {
    return ReportError(absl::DeadlineExceededError(absl::StrCat(
        "job ", options.job, " is still ", StateName(last.state()), " after the timeout")));
  }
  if (!status.ok()) return ReportError(status);
  std::cout << "Job " << last.id() << " is " << StateName(last.state()) << ": " << last.message()
            << "\n";
  if (wanted != v1::JOB_STATE_UNSPECIFIED) return reached ? kExitOk : kExitJobFailed;
  return last.state() == v1::SUCCEEDED ? kExitOk : kExitJobFailed;
}

}  // namespace esteira
