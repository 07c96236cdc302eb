#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/observability/coordinator_metrics.h"
#include "coordinator/controller/state.h"
#include "coordinator/job/job_store.h"

namespace esteira {

// A line for the job's folder.
struct StepLine {
  std::string job_id;
  StepRecord record;
  std::vector<int64_t> sample_ids;
};
struct LogLine {
  std::string job_id;
  int rank = 0;
  std::string worker;
  LogReport log;
};

// What a turn of the controller wants done outside: log lines and writes first, and the rest only
// when the writes are on disk. So whoever sees that a job is over finds all its log lines.
struct Outbox {
  std::vector<LogLine> logs;
  std::vector<JobWrite> writes;
  std::vector<StepLine> steps;
  std::vector<std::pair<int64_t, WorkerCommand>> commands;  // by session
  std::vector<std::pair<int64_t, absl::Status>> closes;     // sessions that are over
  std::vector<std::function<void()>> replies;
  std::set<std::string> changed_jobs;
  std::set<std::string> heard_workers;  // whose reports may be acknowledged
};

// One turn: the state, the time, and what is to be done outside. The small steps here keep state,
// store and metrics in line; what to do and when is decided by the callers. Lives on the
// controller's thread.
class Turn {
 public:
  Turn(State& turn_state, absl::Time turn_now, CoordinatorMetrics& turn_metrics,
       const Logger& turn_log)
      : state(turn_state), now(turn_now), metrics(turn_metrics), log(turn_log) {}

  State& state;
  const absl::Time now;
  CoordinatorMetrics& metrics;
  const Logger& log;
  Outbox out;

  void MoveJob(ActiveJob& active, JobState to, const std::string& reason,
               const std::string& message);
  // An event within the job's present state.
  void NoteJob(ActiveJob& active, const std::string& reason, const std::string& message);
  // Writes the job's present fields without a transition.
  void SaveJob(const ActiveJob& active);

  // Nothing when the worker has no open stream.
  void Send(const std::string& worker, const WorkerCommand& command);
  void Abort(const std::string& worker, const Assignment& place, const std::string& message);
  // To a rank's worker; every rank is ready. A trainer that has started ignores it.
  void SendStart(const ActiveJob& active, const std::string& worker);
  void AbortRanks(ActiveJob& active, const std::string& message);

  // A rank ended before its time. The first failure that is no consequence is the verdict over the
  // job; later ones, and those of a job that is over, are consequences. One failure a rank.
  struct Failure {
    std::string reason;
    std::string cause;
    bool consequence = false;
    int64_t step = 0;
    bool await_steps = false;  // other ranks still report the steps that this one has reported
  };
  void FailRank(ActiveJob& active, int rank, const Failure& failure);
  // No Exited will come from the rank.
  void LoseRank(const Assignment& place, const std::string& worker, const Failure& failure);

  void DropStale(const std::string& worker, const std::string& why);
};

}  // namespace esteira
