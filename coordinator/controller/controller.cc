#include "coordinator/controller/controller.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/controller/apply.h"
#include "coordinator/controller/decide.h"
#include "coordinator/controller/execute.h"
#include "coordinator/controller/worker_specs.h"
#include "coordinator/job/restore_steps.h"

namespace esteira {

Controller::Controller(const ControllerOptions& options, const Parts& parts, Logger log)
    : options_(options), parts_(parts), log_(std::move(log)), state_(options) {}

Controller::~Controller() { Stop(); }

absl::Status Controller::Start() {
  RETURN_IF_ERROR(Recover());
  const absl::Status restored = RestoreStepLines(parts_.store, parts_.directory);
  if (!restored.ok()) {
    log_.Error(absl::StrCat("lines of steps.jsonl stay missing: ", restored.message()));
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Controller::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&watch_mutex_);
  for (const auto& [job_id, wakes] : watches_) {
    for (const auto& [number, wake] : wakes) wake();
  }
  watches_.clear();
  watched_jobs_.clear();
}

// ---- Recovery.

absl::Status Controller::Recover() {
  ASSIGN_OR_RETURN(state_.last_sequence, parts_.store.LastSequence());
  ASSIGN_OR_RETURN(const auto counts, parts_.store.CountByState());
  for (const JobState state : kJobStates) {
    const auto it = counts.find(JobStateName(state));
    if (IsTerminal(state) && it != counts.end()) state_.ended_jobs[state] = it->second;
  }
  ASSIGN_OR_RETURN(std::vector<Job> jobs, parts_.store.ListActive());
  Turn turn(state_, parts_.clock.Now(), parts_.metrics, log_);
  for (Job& job : jobs) RecoverJob(turn, std::move(job));
  if (!jobs.empty()) log_.With("jobs", jobs.size()).Info("found the jobs of the last life");
  RETURN_IF_ERROR(Commit(turn.out.writes));
  UpdateGauges();
  return absl::OkStatus();
}

// Training goes on by itself; its workers have one full lease to come back. A job that had not
// begun begins again.
void Controller::RecoverJob(Turn& turn, Job job) {
  ActiveJob active;
  const absl::StatusOr<JobNeeds> needs = parts_.planner.Check(job.spec_bytes);
  if (needs.ok()) active.needs = *needs;
  const std::string id = job.id;
  const JobState state = job.state;
  if (state == JobState::kRunning || state == JobState::kStopping) {
    WorkerGroup& group = active.group.emplace();
    group.deadline = turn.now + options_.membership.lease;
    group.memory_recorded = true;
    group.started = job.step > 0;
    if (!group.started) group.start_deadline = turn.now + options_.start_timeout;
    for (const std::string& worker : job.workers) {
      RankState& rank = group.ranks.emplace_back();
      rank.worker = worker;
      rank.present = false;
      rank.last_step = job.step;
    }
  }
  active.job = std::move(job);
  state_.AddJob(std::move(active));
  ActiveJob& added = state_.jobs.at(id);
  if (!needs.ok() && state == JobState::kQueued) {
    turn.MoveJob(added, JobState::kFailed, "PLAN_FAILED", std::string(needs.status().message()));
    state_.watched.erase(id);
    state_.jobs.erase(id);
  } else if (state == JobState::kPlanning || state == JobState::kStarting) {
    turn.MoveJob(added, JobState::kQueued, "COORDINATOR_RESTARTED",
                 "the coordinator restarted before training began");
  }
}

// ---- The loop.

absl::Duration Controller::TickInterval() const {
  return std::clamp(options_.membership.lease / 20, absl::Milliseconds(10), absl::Seconds(1));
}

void Controller::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !events_.empty();
  };
  while (true) {
    std::vector<std::pair<absl::Time, Event>> events;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&has_work), TickInterval());
      if (stopping_) return;
      events.swap(events_);
    }
    TakeTurn(events);
  }
}

void Controller::TakeTurn(const std::vector<std::pair<absl::Time, Event>>& events) {
  const auto keep = [this](Turn& turn) { held_.push_back(std::move(turn.out)); };
  for (const auto& [time, event] : events) {
    // The time at which it came, not at which its turn is: a busy controller must not end leases.
    Turn turn(state_, time, parts_.metrics, log_);
    event(turn);
    keep(turn);
  }
  Turn turn(state_, parts_.clock.Now(), parts_.metrics, log_);
  Settle(turn);
  keep(turn);
  Flush();
  UpdateGauges();
}

void Controller::Settle(Turn& turn) {
  const absl::Time now = failing_since_ ? std::min(*failing_since_, turn.now) : turn.now;
  state_.membership.UpdateQuiet(now);
  while (true) {
    const std::vector<Action> actions = Decide(state_, now);
    if (actions.empty()) return;
    for (const Action& action : actions) Execute(turn, parts_.planner, action);
  }
}

// What every rank's report of a step is needed for is acknowledged when the step is recorded.
void Controller::AddAcknowledgements(Turn& turn) {
  for (const std::string& id : turn.out.heard_workers) {
    const WorkerRecord* worker = state_.membership.Find(id);
    const auto it = state_.progress.find(id);
    if (worker == nullptr || it == state_.progress.end()) continue;
    uint64_t sequence = it->second.handled;
    if (worker->assignment) {
      const RankState* rank = state_.FindRank(*worker->assignment, id);
      if (rank != nullptr && !rank->unmerged.empty()) sequence = rank->unmerged.front().second - 1;
    }
    if (sequence <= it->second.acknowledged) continue;
    it->second.acknowledged = sequence;
    turn.Send(id, AcknowledgedCommand{sequence});
  }
}

// True when everything so far is on disk and done.
bool Controller::Flush() {
  std::vector<JobWrite> writes;
  Turn acknowledgements(state_, parts_.clock.Now(), parts_.metrics, log_);
  for (Outbox& out : held_) {
    WriteLogs(std::exchange(out.logs, {}));
    std::move(out.writes.begin(), out.writes.end(), std::back_inserter(writes));
    out.writes.clear();
    acknowledgements.out.heard_workers.merge(out.heard_workers);
  }
  const absl::Status status = Commit(writes);
  NoteCommit(status, acknowledgements.now);
  if (!status.ok()) {
    if (held_.empty()) held_.emplace_back();
    held_.front().writes = std::move(writes);
    held_.front().heard_workers.merge(acknowledgements.out.heard_workers);
    return false;
  }
  AddAcknowledgements(acknowledgements);
  held_.push_back(std::move(acknowledgements.out));
  const std::vector<Outbox> outs = std::exchange(held_, {});
  for (const Outbox& out : outs) Deliver(out);
  // Who asked hears of it when the workers have.
  for (const Outbox& out : outs) Answer(out);
  return true;
}

void Controller::NoteCommit(const absl::Status& status, absl::Time began) {
  if (status.ok() != failing_since_.has_value()) return;
  if (status.ok()) {
    const absl::Time now = parts_.clock.Now();
    log_.Info("changes are recorded again");
    state_.Postpone(now - *failing_since_, now);
    failing_since_.reset();
  } else {
    log_.Error(absl::StrCat("cannot record changes, trying again: ", status.message()));
    failing_since_ = began;
  }
}

absl::Status Controller::Commit(const std::vector<JobWrite>& writes) {
  if (writes.empty()) return absl::OkStatus();
  const absl::Time start = absl::Now();
  absl::Status status = parts_.store.Commit(writes);
  parts_.metrics.ObserveCommit(absl::Now() - start);
  if (!status.ok()) parts_.metrics.CountFailedCommit();
  return status;
}

void Controller::Deliver(const Outbox& out) {
  WriteSteps(out.steps);
  absl::MutexLock lock(&mutex_);
  for (const auto& [session, command] : out.commands) {
    const auto it = sessions_.find(session);
    if (it != sessions_.end()) it->second->Send(command);
  }
  for (const auto& [session, status] : out.closes) {
    const auto it = sessions_.find(session);
    if (it != sessions_.end()) it->second->Close(status);
  }
}

void Controller::Answer(const Outbox& out) {
  for (const std::function<void()>& reply : out.replies) reply();
  absl::MutexLock lock(&watch_mutex_);
  for (const std::string& job_id : out.changed_jobs) {
    const auto it = watches_.find(job_id);
    if (it == watches_.end()) continue;
    for (const auto& [number, wake] : it->second) wake();
  }
}

void Controller::WriteLogs(const std::vector<LogLine>& lines) {
  absl::Status status;
  for (const LogLine& line : lines) {
    status.Update(parts_.directory.AppendLog(line.job_id, line.rank, line.worker, line.log.time,
                                             line.log.text));
  }
  if (!lines.empty()) NoteLines(status);
}

void Controller::WriteSteps(const std::vector<StepLine>& lines) {
  absl::Status status;
  for (const StepLine& line : lines) {
    status.Update(parts_.directory.AppendStep(line.job_id, line.record));
    if (line.sample_ids.empty()) continue;
    status.Update(parts_.directory.AppendSampleIds(line.job_id, line.record.step, line.record.epoch,
                                                   line.sample_ids));
  }
  if (!lines.empty()) NoteLines(status);
}

void Controller::NoteLines(const absl::Status& status) {
  if (!status.ok() && !line_failed_) log_.Error(absl::StrCat("lines are lost: ", status.message()));
  line_failed_ = !status.ok();
}

void Controller::UpdateGauges() {
  std::map<std::string, int64_t> jobs;
  for (const auto& [id, active] : state_.jobs) {
    if (!IsTerminal(active.job.state)) ++jobs[JobStateName(active.job.state)];
  }
  for (const JobState state : kJobStates) {
    const std::string name = JobStateName(state);
    parts_.metrics.SetJobs(name, IsTerminal(state) ? state_.ended_jobs[state] : jobs[name]);
  }
  for (const WorkerState state : {WorkerState::kIdle, WorkerState::kBusy, WorkerState::kLost}) {
    parts_.metrics.SetWorkers(WorkerStateName(state), state_.membership.Count(state));
  }
}

// ---- Events.

void Controller::Post(Event event) {
  const absl::Time now = parts_.clock.Now();
  absl::MutexLock lock(&mutex_);
  if (!stopping_) events_.emplace_back(now, std::move(event));
}

void Controller::Tick() {
  Post([](Turn&) {});
}

void Controller::Submit(SubmitRequest request, std::function<void(absl::StatusOr<Job>)> done) {
  Post([this, request = std::move(request), done = std::move(done)](Turn& turn) {
    absl::StatusOr<Job> job = HandleSubmit(turn, request);
    turn.out.replies.push_back([done, job = std::move(job)] { done(job); });
  });
}

absl::StatusOr<ActiveJob> Controller::CheckJob(const SubmitRequest& request) {
  ActiveJob active;
  ASSIGN_OR_RETURN(active.needs, parts_.planner.Check(request.spec_bytes));
  const ClusterSpec cluster =
      PossibleCluster(state_.membership, active.needs.min_workers, state_.op_factors);
  ASSIGN_OR_RETURN(PlannedJob planned, parts_.planner.Plan(request.spec_bytes, cluster));
  Job& job = active.job;
  job = MakeQueuedJob(state_.last_sequence + 1, parts_.clock.Now());
  job.name = active.needs.name;
  job.spec_bytes = request.spec_bytes;
  job.request_id = request.request_id;
  job.priority = request.priority;
  job.message = QueueMessage(active, state_.membership.CountPresent());
  job.transitions.back().message = job.message;
  job.plan = std::move(planned.summary);
  return active;
}

absl::StatusOr<Job> Controller::HandleSubmit(Turn&, const SubmitRequest& request) {
  ASSIGN_OR_RETURN(std::optional<Job> earlier, parts_.store.FindRequest(request.request_id));
  if (earlier) {
    if (earlier->spec_bytes == request.spec_bytes && earlier->priority == request.priority)
      return *std::move(earlier);
    return absl::InvalidArgumentError(
        absl::StrCat("request_id \"", request.request_id, "\" was used for ", earlier->id,
                     ", which has another spec or priority: use a new request_id"));
  }
  ASSIGN_OR_RETURN(ActiveJob active, CheckJob(request));
  if (request.validate_only) {
    active.job.id.clear();
    return active.job;
  }
  // The plan at submission was only a check; the one that counts is made for the workers that the
  // job gets.
  active.job.plan.reset();
  RETURN_IF_ERROR(Commit({InsertJob{active.job}}));
  state_.last_sequence = active.job.sequence;
  log_.With("job", active.job.id).With("name", active.job.name).Info("job submitted");
  Job job = active.job;
  state_.AddJob(std::move(active));
  return job;
}

void Controller::Cancel(std::string job_id, std::function<void(absl::StatusOr<Job>)> done) {
  Post([this, job_id = std::move(job_id), done = std::move(done)](Turn& turn) {
    const auto it = turn.state.jobs.find(job_id);
    const bool active = it != turn.state.jobs.end() && !IsTerminal(it->second.job.state);
    if (active) {
      it->second.cancel_requested = true;
      turn.state.watched.insert(job_id);
      // Decided in this turn, so that the answer, after the commit, shows it.
      Settle(turn);
    }
    turn.out.replies.push_back([this, job_id, done, active] {
      done(active ? parts_.store.Get(job_id) : FindEnded(job_id));
    });
  });
}

// Only after a commit does the store say how a job ended that is not active any more.
absl::StatusOr<Job> Controller::FindEnded(const std::string& job_id) {
  ASSIGN_OR_RETURN(Job job, parts_.store.Get(job_id));
  if (job.state == JobState::kCancelled) return job;
  return absl::FailedPreconditionError(
      absl::StrCat(job_id, " is already ", JobStateName(job.state)));
}

void Controller::ListWorkers(std::function<void(std::vector<WorkerRecord>)> done) {
  Post([done = std::move(done)](Turn& turn) {
    std::vector<WorkerRecord> workers;
    for (const auto& [id, worker] : turn.state.membership.workers()) workers.push_back(worker);
    turn.out.replies.push_back([done, workers = std::move(workers)] { done(workers); });
  });
}

// ---- Sessions.

int64_t Controller::OpenSession(std::shared_ptr<WorkerSession> session) {
  absl::MutexLock lock(&mutex_);
  sessions_.emplace(next_session_, std::move(session));
  return next_session_++;
}

void Controller::Receive(int64_t session, WorkerMessage message, std::function<void()> handled) {
  Post([session, message = std::move(message), handled = std::move(handled)](Turn& turn) {
    ApplyMessage(turn, session, message);
    turn.out.replies.push_back(handled);
  });
}

void Controller::CloseSession(int64_t session) {
  {
    absl::MutexLock lock(&mutex_);
    sessions_.erase(session);
  }
  Post([session](Turn& turn) { ApplyDisconnect(turn, session); });
}

// ---- Watches.

int64_t Controller::Watch(const std::string& job_id, std::function<void()> wake) {
  absl::MutexLock lock(&watch_mutex_);
  watches_[job_id].emplace(next_watch_, std::move(wake));
  watched_jobs_.emplace(next_watch_, job_id);
  return next_watch_++;
}

void Controller::Unwatch(int64_t watch) {
  absl::MutexLock lock(&watch_mutex_);
  const auto it = watched_jobs_.find(watch);
  if (it == watched_jobs_.end()) return;
  const auto job = watches_.find(it->second);
  job->second.erase(watch);
  if (job->second.empty()) watches_.erase(job);
  watched_jobs_.erase(it);
}

}  // namespace esteira
