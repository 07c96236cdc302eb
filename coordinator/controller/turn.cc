#include "coordinator/controller/turn.h"

#include "absl/strings/str_cat.h"

namespace esteira {

void Turn::MoveJob(ActiveJob& active, JobState to, const std::string& reason,
                   const std::string& message) {
  Job& job = active.job;
  const JobState from = job.state;
  if (from == JobState::kQueued) state.Dequeue(job);
  const JobTransition& transition = Transition(job, to, reason, message, now);
  out.writes.push_back(AppendTransition{job.id, transition});
  SaveJob(active);
  if (to == JobState::kQueued) {
    state.queue.emplace(-job.priority, job.sequence, job.id);
    state.watched.erase(job.id);
  } else {
    state.watched.insert(job.id);
  }
  if (IsTerminal(to)) {
    ++state.ended_jobs[to];
    metrics.RemoveJob(job.id);
  }
  metrics.CountTransition(JobStateName(from), JobStateName(to));
  const Logger line = log.With("job", job.id).With("epoch", job.epoch).With("reason", reason);
  const std::string event = absl::StrCat("job is ", JobStateName(to), ": ", message);
  if (to == JobState::kFailed) {
    line.Warning(event);
  } else {
    line.Info(event);
  }
}

void Turn::NoteJob(ActiveJob& active, const std::string& reason, const std::string& message) {
  Job& job = active.job;
  out.writes.push_back(AppendTransition{job.id, Note(job, reason, message, now)});
  SaveJob(active);
  log.With("job", job.id).With("epoch", job.epoch).With("reason", reason).Info(message);
}

void Turn::SaveJob(const ActiveJob& active) {
  Job job = active.job;
  // Neither is written by an update; the spec may be large.
  job.spec_bytes.clear();
  job.transitions.clear();
  out.changed_jobs.insert(job.id);
  out.writes.push_back(UpdateJob{std::move(job)});
}

void Turn::Send(const std::string& worker, const WorkerCommand& command) {
  const WorkerRecord* record = state.membership.Find(worker);
  if (record != nullptr && record->connected()) out.commands.emplace_back(record->session, command);
}

void Turn::Abort(const std::string& worker, const Assignment& place, const std::string& message) {
  Send(worker, AbortCommand{place.job_id, place.epoch, message});
}

void Turn::SendStart(const ActiveJob& active, const std::string& worker) {
  StartCommand start{active.job.id, active.job.epoch, {}, {}};
  for (const RankState& rank : active.group->ranks) {
    start.addresses.push_back(rank.ready->address);
    start.transport_versions.push_back(rank.ready->transport_version);
  }
  Send(worker, start);
}

void Turn::AbortRanks(ActiveJob& active, const std::string& message) {
  const Job& job = active.job;
  for (const RankState& rank : active.group->ranks) {
    if (!rank.done()) Send(rank.worker, AbortCommand{job.id, job.epoch, message});
  }
}

void Turn::FailRank(ActiveJob& active, int rank, const Failure& failure) {
  Job& job = active.job;
  WorkerGroup& group = *active.group;
  RankState& rank_state = group.ranks[static_cast<size_t>(rank)];
  if (rank_state.failed) return;
  rank_state.failed = true;
  const bool training = job.state == JobState::kStarting || job.state == JobState::kRunning;
  const bool first = training && !group.verdict && !failure.consequence;
  FailureRecord record{rank_state.worker, rank,   job.epoch, failure.step,
                       failure.cause,     !first, now};
  if (first) {
    group.verdict = Verdict{failure.reason, absl::StrCat("rank ", rank, " on worker ",
                                                         rank_state.worker, ": ", failure.cause)};
    if (failure.await_steps) {
      group.verdict->after_step = rank_state.last_step;
      group.verdict->deadline = now + state.options.membership.lease;
    }
    job.failures.insert(job.failures.begin(), std::move(record));
  } else {
    if (!group.first_echo) group.first_echo = now;
    job.failures.push_back(std::move(record));
  }
  SaveJob(active);
}

void Turn::LoseRank(const Assignment& place, const std::string& worker, const Failure& failure) {
  RankState* rank = state.FindRank(place, worker);
  if (rank == nullptr || rank->done()) return;
  rank->gone = true;
  ActiveJob& active = state.jobs.at(place.job_id);
  if (!IsTerminal(active.job.state)) FailRank(active, place.rank, failure);
}

void Turn::DropStale(const std::string& worker, const std::string& why) {
  metrics.CountStaleMessage();
  log.With("worker", worker).Warning(absl::StrCat("dropped a message: ", why));
}

}  // namespace esteira
