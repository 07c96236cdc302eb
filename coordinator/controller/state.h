#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/controller/job_planner.h"
#include "coordinator/controller/worker_messages.h"
#include "coordinator/controller/worker_specs.h"
#include "coordinator/job/job.h"
#include "coordinator/membership/membership.h"

namespace esteira {

struct ControllerOptions {
  Membership::Options membership;
  absl::Duration heartbeat = absl::Seconds(2);
  absl::Duration start_timeout = absl::Minutes(2);      // from Configure until every rank is ready
  absl::Duration stop_timeout = absl::Seconds(30);      // from Abort until every trainer has left
  absl::Duration operation_timeout = absl::Minutes(5);  // of one exchange between ranks
  // Steps of one job that some ranks have reported and others have not; more than a worker keeps
  // for a coordinator that comes back.
  size_t max_open_steps = 16384;
};

// One rank of a worker group.
struct RankState {
  std::string worker;
  bool present = true;  // false: not heard of since the coordinator restarted
  bool gone = false;  // its worker is lost, restarted, or has no such trainer: no Exited will come
  bool failed = false;                      // a failure of it is recorded
  std::optional<absl::Time> missing_since;  // its worker is there, but says that no trainer runs
  std::optional<ReadyReport> ready;
  std::optional<ExitReport> exit;
  int64_t last_step = 0;
  std::deque<std::pair<int64_t, uint64_t>>
      unmerged;  // step, sequence of reports that wait for other ranks; Ready: 0, for any step

  bool done() const { return exit.has_value() || gone; }
};

// The first cause of a job's end.
struct Verdict {
  std::string reason;
  std::string message;
  // Steps up to it, which the failed rank had reported, are recorded before the job ends, unless
  // that takes until `deadline`.
  int64_t after_step = 0;
  absl::Time deadline = absl::InfinitePast();
};

// The workers of one epoch of a job.
struct WorkerGroup {
  std::vector<RankState> ranks;
  std::shared_ptr<const PlannedJob> plan;  // none after a restart of the coordinator
  OpFactors factors = NoOpFactors();       // that the plan was made with
  std::string
      kind;  // of the devices of all its workers; empty: there are several, or none is known
  absl::Time deadline =
      absl::InfiniteFuture();  // STARTING: ready; RUNNING: heard of again; STOPPING: left
  bool started = false;        // Start was sent in this life, or a step shows that it arrived
  absl::Time start_deadline = absl::InfiniteFuture();  // RUNNING and not started: started
  std::map<int64_t, std::vector<std::optional<StepPart>>> parts;  // by step, by rank
  bool memory_recorded = false;
  std::optional<Verdict> verdict;
  std::optional<absl::Time> first_echo;  // a consequence was reported before its cause

  bool AllDone() const;
  bool AllReady() const;
  // The verdict waits for reports of a step.
  bool VerdictWaits(absl::Time now) const;
};

struct ActiveJob {
  Job job;
  JobNeeds needs;
  // So many workers have too little memory for it; known when it was planned for them.
  int too_few_workers = 0;
  bool cancel_requested = false;
  std::optional<WorkerGroup> group;  // from STARTING until every rank has left

  int MinWorkers() const { return std::max(needs.min_workers, too_few_workers + 1); }
};

// How far a worker's reports are handled.
struct ReportProgress {
  uint64_t incarnation = 0;
  uint64_t handled = 0;
  uint64_t acknowledged = 0;
};

// Everything that the controller knows. Owned by one thread; a value that tests can build by hand.
struct State {
  explicit State(const ControllerOptions& controller_options)
      : options(controller_options), membership(controller_options.membership) {}

  ControllerOptions options;
  Membership membership;
  std::map<std::string, ActiveJob> jobs;  // not terminal, or not all of whose trainers have left
  std::set<std::tuple<int64_t, int64_t, std::string>>
      queue;                      // -priority, sequence, id of QUEUED jobs
  std::set<std::string> watched;  // jobs that may need a decision besides their turn in the queue
  int described_workers = -1;     // the number of workers that messages of queued jobs speak of
  std::map<std::string, ReportProgress> progress;  // by worker
  OpFactorsByKind op_factors;                      // as step reports have refined them
  int64_t last_sequence = 0;
  std::map<JobState, int64_t> ended_jobs;  // in the store, by terminal state

  void AddJob(ActiveJob job);
  void Dequeue(const Job& job);
  // The rank that the report or registration speaks of; null when the job, epoch, rank or worker
  // does not fit.
  RankState* FindRank(const Assignment& place, const std::string& worker);
  // Time in which nothing could be heard has passed: every lease begins anew at `now`, and what
  // else runs out does so later by `duration`.
  void Postpone(absl::Duration duration, absl::Time now);
};

// What a queued job waits for.
std::string QueueMessage(const ActiveJob& active, int present_workers);

}  // namespace esteira
