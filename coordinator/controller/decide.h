// The controller's decisions: a pure function from what is known to what is to be done, as data.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/controller/state.h"

namespace esteira {

// The worker's lease is over.
struct LoseWorker {
  std::string worker;
  std::string reason;
  bool operator==(const LoseWorker&) const = default;
};
// A lost worker's row is dropped.
struct ForgetWorker {
  std::string worker;
  bool operator==(const ForgetWorker&) const = default;
};
// The rank's worker is there but has no such trainer.
struct LoseRank {
  std::string job_id;
  int rank = 0;
  bool operator==(const LoseRank&) const = default;
};
// Plan the queued job for these idle workers and tell the ones that the plan uses.
struct LaunchJob {
  std::string job_id;
  std::vector<std::string> workers;
  bool operator==(const LaunchJob&) const = default;
};
// Every rank is ready: train. Of a RUNNING job whose Start may have been lost too.
struct StartJob {
  std::string job_id;
  bool operator==(const StartJob&) const = default;
};
// The user cancelled a job that has trainers.
struct StopJob {
  std::string job_id;
  bool operator==(const StopJob&) const = default;
};
// To a terminal state; trainers that still run are aborted.
struct EndJob {
  std::string job_id;
  JobState state = JobState::kFailed;
  std::string reason;
  std::string message;
  bool echo_is_cause = false;  // no first cause is known: the first echo stands for it
  bool operator==(const EndJob&) const = default;
};
// The job is terminal and its last trainer has left.
struct DropJob {
  std::string job_id;
  bool operator==(const DropJob&) const = default;
};
// The number of workers changed: queued jobs say so.
struct DescribeQueue {
  bool operator==(const DescribeQueue&) const = default;
};

using Action = std::variant<LoseWorker, ForgetWorker, LoseRank, LaunchJob, StartJob, StopJob,
                            EndJob, DropJob, DescribeQueue>;

// What to do now. Call again after the actions are done, until nothing is left. Lost workers come
// first and alone: what they mean for jobs is decided in the next round.
//
// Queue: by priority, then order of submission. A job gets all its workers or none. One that needs
// more than are idle holds back those behind it, so that it cannot starve; one that needs more than
// are registered does not.
std::vector<Action> Decide(const State& state, absl::Time now);

}  // namespace esteira
