#include "coordinator/job/job.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {

const JobTransition& Transition(Job& job, JobState state, const std::string& reason,
                                const std::string& message, absl::Time now) {
  CHECK(IsAllowed(job.state, state));
  job.state = state;
  job.reason = reason;
  job.message = message;
  if (state == JobState::kStarting) job.start_time = now;
  if (IsTerminal(state)) job.end_time = now;
  return job.transitions.emplace_back(JobTransition{state, reason, message, now});
}

const JobTransition& Note(Job& job, const std::string& reason, const std::string& message,
                          absl::Time now) {
  job.reason = reason;
  job.message = message;
  return job.transitions.emplace_back(JobTransition{job.state, reason, message, now});
}

Job MakeQueuedJob(int64_t sequence, absl::Time now) {
  Job job;
  job.sequence = sequence;
  job.id = absl::StrCat("job-", sequence);
  job.submit_time = now;
  job.reason = "SUBMITTED";
  job.message = "waiting for workers";
  job.transitions.push_back({job.state, job.reason, job.message, now});
  return job;
}

}  // namespace esteira
