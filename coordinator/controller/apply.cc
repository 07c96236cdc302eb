#include "coordinator/controller/apply.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/controller/calibration.h"
#include "coordinator/controller/merge_step.h"

namespace esteira {
namespace {

constexpr char kEpochOver[] = "this epoch of the job is over";

bool IsTraining(const ActiveJob& active) {
  return active.job.state == JobState::kStarting || active.job.state == JobState::kRunning;
}

// ---- Registration.

// The worker, in the same life, has no trainer. Its Exited may still be on its way; when not, the
// rank is lost.
void ApplyNoTrainer(Turn& turn, const std::string& worker, const Assignment& place) {
  RankState* rank = turn.state.FindRank(place, worker);
  if (rank == nullptr || rank->done()) {
    turn.state.membership.Release(worker);
  } else if (!rank->missing_since) {
    rank->missing_since = turn.now;
  }
}

// The worker has a trainer.
void ApplyTrainer(Turn& turn, const std::string& worker, const std::optional<Assignment>& held,
                  const Assignment& place) {
  if (held && *held != place) ApplyNoTrainer(turn, worker, *held);
  turn.state.membership.Assign(worker, place);
  RankState* rank = turn.state.FindRank(place, worker);
  if (rank == nullptr || rank->done()) {
    turn.Abort(worker, place, kEpochOver);
    return;
  }
  rank->present = true;
  rank->missing_since.reset();
  const ActiveJob& active = turn.state.jobs.at(place.job_id);
  if (!IsTraining(active)) {
    turn.Abort(worker, place, active.job.message);
  } else if (active.job.state == JobState::kRunning && active.group->AllReady()) {
    // The first Start may have been lost with the stream before this one.
    turn.SendStart(active, worker);
  }
}

void ApplyRegister(Turn& turn, int64_t session, const RegisterMessage& message) {
  const WorkerDescription& description = message.description;
  const std::string& id = description.id;
  absl::StatusOr<Membership::Registration> registration =
      turn.state.membership.Register(description, session, turn.now);
  if (!registration.ok()) {
    const std::string why(registration.status().message());
    turn.DropStale(id, why);
    turn.out.commands.emplace_back(session, RefusedCommand{why});
    turn.out.closes.emplace_back(session, registration.status());
    return;
  }
  if (registration->replaced_session != 0 && registration->replaced_session != session) {
    turn.out.closes.emplace_back(
        registration->replaced_session,
        absl::AbortedError(absl::StrCat("worker ", id, " has opened a new session")));
  }
  if (registration->abandoned) {
    turn.LoseRank(*registration->abandoned, id,
                  {"WORKER_RESTARTED", "the worker daemon restarted"});
  }
  ReportProgress& progress = turn.state.progress[id];
  if (progress.incarnation != description.incarnation) {
    progress = ReportProgress{description.incarnation, 0, 0};
  }
  // A worker that comes back sends again what it was not told of.
  progress.acknowledged = 0;
  turn.Send(id,
            RegisteredCommand{turn.state.options.membership.lease, turn.state.options.heartbeat});
  const std::optional<Assignment> held = turn.state.membership.Find(id)->assignment;
  if (message.running) {
    ApplyTrainer(turn, id, held, *message.running);
  } else if (held) {
    ApplyNoTrainer(turn, id, *held);
  }
  turn.log.With("worker", id)
      .With("incarnation", description.incarnation)
      .Info("worker registered");
}

// ---- Reports of a rank that is known to be current.

struct Place {
  ActiveJob& active;
  RankState& rank;
  int number;
  const std::string& worker;
  uint64_t sequence;
};

void ApplyReport(Turn&, const Place& place, const ReadyReport& ready) {
  if (!IsTraining(place.active)) return;
  place.rank.ready = ready;
  // Acknowledged with the first step: until then a coordinator that restarts needs it again, to
  // send the Start that may have been lost.
  if (place.sequence != 0) place.rank.unmerged.emplace_back(0, place.sequence);
}

void ApplyReport(Turn& turn, const Place& place, const LogReport& log) {
  turn.out.logs.push_back(LogLine{place.active.job.id, place.number, place.worker, log});
  turn.out.changed_jobs.insert(place.active.job.id);
}

void ApplyReport(Turn& turn, const Place& place, const CheckpointRecord& checkpoint) {
  turn.out.writes.push_back(AppendCheckpoint{place.active.job.id, checkpoint});
  turn.out.changed_jobs.insert(place.active.job.id);
}

// A worker that was not told that it is on disk sends it again.
void ApplyReport(Turn& turn, const Place& place, const NoticeReport& notice) {
  Job& job = place.active.job;
  if (!IsTraining(place.active)) return;
  if (job.reason == notice.reason && job.message == notice.message) return;
  if (notice.step) job.step = std::max(job.step, *notice.step);
  turn.NoteJob(place.active, notice.reason, notice.message);
}

bool IsGood(const ExitReport& exit) {
  return exit.exit_code == 0 && exit.signal == 0 && !exit.out_of_memory;
}

// The first step of an epoch is slower than others and says nothing.
void RefineFactors(Turn& turn, const ActiveJob& active, const MergedStep& merged) {
  const WorkerGroup& group = *active.group;
  if (group.kind.empty() || !group.memory_recorded || !merged.complete || !active.job.plan) return;
  OpFactors& factors = turn.state.op_factors.emplace(group.kind, NoOpFactors()).first->second;
  Refine(group.factors, active.job.plan->prediction, merged.record, factors);
}

void RecordStep(Turn& turn, ActiveJob& active, MergedStep merged) {
  Job& job = active.job;
  const StepRecord& record = merged.record;
  job.step = record.step;
  job.loss = record.loss;
  if (record.validation_loss) job.validation_loss = *record.validation_loss;
  RefineFactors(turn, active, merged);
  active.group->memory_recorded = true;
  turn.out.writes.push_back(AppendStep{job.id, record});
  turn.SaveJob(active);
  turn.metrics.ObserveStep(job.id, record.loss, record.step_seconds, record.tokens);
  turn.out.steps.push_back(StepLine{job.id, record, std::move(merged.sample_ids)});
}

// A rank that is past the step, has failed or has left without having reported it will not do so
// any more.
bool IsComplete(const WorkerGroup& group, int64_t step,
                const std::vector<std::optional<StepPart>>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const RankState& rank = group.ranks[i];
    if (!parts[i] && rank.last_step <= step && !rank.failed && !rank.done()) return false;
  }
  return true;
}

void MergeSteps(Turn& turn, ActiveJob& active) {
  WorkerGroup& group = *active.group;
  while (!group.parts.empty() && IsTraining(active)) {
    const auto it = group.parts.begin();
    const int64_t step = it->first;
    if (group.verdict && step > group.verdict->after_step) return;
    if (!IsComplete(group, step, it->second)) return;
    absl::StatusOr<MergedStep> merged =
        MergeStep(it->second, {active.job.epoch, active.job.peak_flops, active.job.flops_per_token,
                               !group.memory_recorded,
                               active.job.plan ? &active.job.plan->prediction : nullptr});
    group.parts.erase(it);
    for (RankState& rank : group.ranks) {
      while (!rank.unmerged.empty() && rank.unmerged.front().first <= step) {
        rank.unmerged.pop_front();
      }
      turn.out.heard_workers.insert(rank.worker);
    }
    if (merged.ok()) {
      RecordStep(turn, active, *std::move(merged));
    } else {
      if (!group.verdict) {
        group.verdict = Verdict{"DIVERGED", std::string(merged.status().message())};
      }
      group.verdict->after_step = 0;
    }
  }
}

void ApplyReport(Turn& turn, const Place& place, const StepPart& part) {
  const int64_t step = part.record.step;
  WorkerGroup& group = *place.active.group;
  group.started = true;
  // Of a job that ends no step is recorded any more. A step that is recorded, or that the rank has
  // reported, comes again from a worker that was not told of it.
  if (!IsTraining(place.active) || step <= place.active.job.step || step <= place.rank.last_step) {
    place.rank.last_step = std::max(place.rank.last_step, step);
    return;
  }
  place.rank.last_step = step;
  if (group.parts.size() >= turn.state.options.max_open_steps && group.parts.count(step) == 0) {
    turn.FailRank(place.active, place.number,
                  {"TRAINER_FAILED",
                   absl::StrCat("it is ", group.parts.size(),
                                " steps ahead of ranks that have not reported step ",
                                group.parts.begin()->first),
                   false, step});
    return;
  }
  std::vector<std::optional<StepPart>>& parts = group.parts[step];
  parts.resize(group.ranks.size());
  parts[static_cast<size_t>(place.number)] = part;
  if (place.sequence != 0) place.rank.unmerged.emplace_back(step, place.sequence);
  MergeSteps(turn, place.active);
}

void ApplyReport(Turn& turn, const Place& place, const FailedReport& failed) {
  turn.FailRank(place.active, place.number,
                {"TRAINER_FAILED", failed.message, failed.consequence,
                 failed.step != 0 ? failed.step : place.rank.last_step,
                 /*await_steps=*/true});
  MergeSteps(turn, place.active);
}

void ApplyReport(Turn& turn, const Place& place, const ExitReport& exit) {
  place.rank.exit = exit;
  turn.state.membership.Release(place.worker);
  if (!IsTraining(place.active)) return;
  const bool good = IsGood(exit);
  if (good && place.active.job.state == JobState::kRunning && !place.rank.failed) {
    MergeSteps(turn, place.active);
    return;
  }
  turn.FailRank(place.active, place.number,
                {exit.out_of_memory ? "OUT_OF_MEMORY" : "TRAINER_FAILED",
                 good ? "trainer left before training began" : DescribeExit(exit), false,
                 place.rank.last_step});
  MergeSteps(turn, place.active);
}

// ---- Reports in general.

void ApplyStaleReport(Turn& turn, const std::string& worker, const TrainerReport& report) {
  const std::optional<Assignment>& held = turn.state.membership.Find(worker)->assignment;
  if (std::holds_alternative<ExitReport>(report.body)) {
    if (held == report.place) turn.state.membership.Release(worker);
    return;
  }
  turn.DropStale(worker, absl::StrCat("it is not rank ", report.place.rank, " of job ",
                                      report.place.job_id, " in epoch ", report.place.epoch));
  if (std::holds_alternative<ReadyReport>(report.body) ||
      std::holds_alternative<StepPart>(report.body)) {
    turn.Abort(worker, report.place, kEpochOver);
  }
}

void ApplyTrainerReport(Turn& turn, const WorkerMessage& message, const TrainerReport& report) {
  const std::string& worker = message.worker_id;
  ReportProgress& progress = turn.state.progress[worker];
  turn.out.heard_workers.insert(worker);
  if (message.sequence != 0) {
    if (message.sequence <= progress.handled) return;  // sent again after a break of the stream
    progress.handled = message.sequence;
  }
  RankState* rank = turn.state.FindRank(report.place, worker);
  if (rank == nullptr || rank->exit) {
    ApplyStaleReport(turn, worker, report);
    return;
  }
  if (!rank->present) {
    // After a restart of the coordinator: what the trainer reported meanwhile, even if it has left
    // since.
    rank->present = true;
    turn.state.membership.Assign(worker, report.place);
  }
  const Place place{turn.state.jobs.at(report.place.job_id), *rank, report.place.rank, worker,
                    message.sequence};
  std::visit([&](const auto& body) { ApplyReport(turn, place, body); }, report.body);
}

}  // namespace

void ApplyMessage(Turn& turn, int64_t session, const WorkerMessage& message) {
  if (const auto* registration = std::get_if<RegisterMessage>(&message.body)) {
    ApplyRegister(turn, session, *registration);
    return;
  }
  if (!turn.state.membership.Touch(message.worker_id, message.incarnation, session, turn.now)) {
    const std::string why = "the worker is not registered on this stream: register again";
    turn.DropStale(message.worker_id, why);
    turn.out.closes.emplace_back(session, absl::FailedPreconditionError(why));
    return;
  }
  if (const auto* report = std::get_if<TrainerReport>(&message.body)) {
    ApplyTrainerReport(turn, message, *report);
  }
}

void ApplyDisconnect(Turn& turn, int64_t session) { turn.state.membership.Disconnect(session); }

std::string DescribeExit(const ExitReport& exit) {
  // The daemon saw more than the numbers.
  if (!exit.message.empty()) return exit.message;
  if (exit.out_of_memory) return "trainer was killed: out of memory";
  if (exit.signal == 0) return absl::StrCat("trainer exited with code ", exit.exit_code);
  const char* name = sigabbrev_np(exit.signal);
  return absl::StrCat("trainer killed by signal ", exit.signal,
                      name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

}  // namespace esteira
