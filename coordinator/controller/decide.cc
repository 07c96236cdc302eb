#include "coordinator/controller/decide.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace esteira {
namespace {

// Ranks by number and worker, three at most by name.
std::string NameRanks(const WorkerGroup& group, bool (*select)(const RankState&)) {
  constexpr size_t kMaxNamed = 3;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < group.ranks.size(); ++rank) {
    if (select(group.ranks[rank])) {
      names.push_back(absl::StrCat("rank ", rank, " on worker ", group.ranks[rank].worker));
    }
  }
  const size_t more = names.size() > kMaxNamed ? names.size() - kMaxNamed : 0;
  names.resize(names.size() - more);
  std::string text = absl::StrJoin(names, ", ");
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

template <typename Predicate>
bool All(const WorkerGroup& group, Predicate predicate) {
  return std::all_of(group.ranks.begin(), group.ranks.end(), predicate);
}

std::vector<Action> JudgeWorkers(const State& state, absl::Time now) {
  std::vector<Action> actions;
  if (now < state.membership.quiet_until()) return actions;
  for (const auto& [id, worker] : state.membership.workers()) {
    if (worker.lost) {
      if (now - worker.last_seen >= state.options.membership.forget_after) {
        actions.push_back(ForgetWorker{id});
      }
      continue;
    }
    Assessment assessment = state.membership.AssessWorker(worker, now);
    if (assessment.health == Health::kLost) {
      actions.push_back(LoseWorker{id, std::move(assessment.reason)});
    }
  }
  return actions;
}

// A group whose job is over only waits for its trainers.
std::optional<Action> DecideMissing(const ActiveJob& active, const State& state, absl::Time now) {
  const std::vector<RankState>& ranks = active.group->ranks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].done() && ranks[rank].missing_since &&
        now - *ranks[rank].missing_since >= state.options.membership.lease) {
      return LoseRank{active.job.id, static_cast<int>(rank)};
    }
  }
  return std::nullopt;
}

std::optional<Action> DecideFailure(const ActiveJob& active, const State& state, absl::Time now) {
  const WorkerGroup& group = *active.group;
  const std::string& id = active.job.id;
  if (group.verdict) {
    return EndJob{id, JobState::kFailed, group.verdict->reason, group.verdict->message};
  }
  // An echo came first: its cause is known within one lease, or when the last rank has left, or not
  // at all.
  if (group.first_echo &&
      (group.AllDone() || now - *group.first_echo >= state.options.membership.lease)) {
    const FailureRecord& echo = active.job.failures.front();
    return EndJob{id, JobState::kFailed, "TRAINER_FAILED",
                  absl::StrCat("rank ", echo.rank, " on worker ", echo.worker, ": ", echo.cause),
                  /*echo_is_cause=*/true};
  }
  return std::nullopt;
}

std::optional<Action> DecideStarting(const ActiveJob& active, absl::Time now) {
  const WorkerGroup& group = *active.group;
  if (group.AllReady()) return StartJob{active.job.id};
  if (now < group.deadline) return std::nullopt;
  return EndJob{active.job.id, JobState::kFailed, "START_TIMEOUT",
                absl::StrCat("trainers were not ready in time: ",
                             NameRanks(group, [](const RankState& r) { return !r.ready; }))};
}

std::optional<Action> DecideRunning(const ActiveJob& active, absl::Time now) {
  const WorkerGroup& group = *active.group;
  const auto left = [](const RankState& rank) { return rank.exit.has_value(); };
  if (All(group, left)) {
    return EndJob{
        active.job.id, JobState::kSucceeded, "COMPLETED",
        absl::StrCat("trained ", active.job.step, active.job.step == 1 ? " step" : " steps")};
  }
  if (!group.started && group.AllReady()) return StartJob{active.job.id};
  if (!group.started && now >= group.start_deadline) {
    return EndJob{active.job.id, JobState::kFailed, "START_TIMEOUT",
                  absl::StrCat("no step since the coordinator restarted, and training cannot be "
                               "started again without the address of ",
                               NameRanks(group, [](const RankState& r) { return !r.ready; }))};
  }
  if (now < group.deadline || All(group, [](const RankState& r) { return r.present; })) {
    return std::nullopt;
  }
  return EndJob{active.job.id, JobState::kFailed, "WORKER_LOST",
                absl::StrCat("not heard of since the coordinator restarted: ",
                             NameRanks(group, [](const RankState& r) { return !r.present; }))};
}

std::optional<Action> DecideStopping(const ActiveJob& active, absl::Time now) {
  const WorkerGroup& group = *active.group;
  std::string message = "cancelled by the user";
  if (!group.AllDone()) {
    if (now < group.deadline) return std::nullopt;
    absl::StrAppend(&message, "; not yet confirmed by ",
                    NameRanks(group, [](const RankState& r) { return !r.done(); }));
  }
  return EndJob{active.job.id, JobState::kCancelled, "CANCELLED_BY_USER", message};
}

std::optional<Action> DecideJob(const ActiveJob& active, const State& state, absl::Time now) {
  const std::string& id = active.job.id;
  if (active.job.state == JobState::kQueued) {
    if (!active.cancel_requested) return std::nullopt;
    return EndJob{id, JobState::kCancelled, "CANCELLED_BY_USER",
                  "cancelled by the user before it started"};
  }
  if (!active.group) return std::nullopt;
  if (IsTerminal(active.job.state) && active.group->AllDone()) return DropJob{id};
  if (std::optional<Action> missing = DecideMissing(active, state, now)) return missing;
  if (IsTerminal(active.job.state)) return std::nullopt;
  if (active.job.state == JobState::kStopping) return DecideStopping(active, now);
  if (active.group->VerdictWaits(now)) return std::nullopt;
  if (std::optional<Action> failure = DecideFailure(active, state, now)) return failure;
  if (active.cancel_requested) return StopJob{id};
  return active.job.state == JobState::kStarting ? DecideStarting(active, now)
                                                 : DecideRunning(active, now);
}

// Only the first launch: how many workers the plan takes is known after it.
std::optional<Action> DecideLaunch(const State& state, absl::Time now) {
  if (state.queue.empty()) return std::nullopt;
  std::vector<std::string> available = state.membership.ListAvailable(now);
  if (available.empty()) return std::nullopt;
  const int present = state.membership.CountPresent();
  for (const auto& [priority, sequence, id] : state.queue) {
    const ActiveJob& active = state.jobs.at(id);
    if (active.MinWorkers() > present) continue;
    if (active.MinWorkers() > static_cast<int>(available.size())) return std::nullopt;
    return LaunchJob{id, std::move(available)};
  }
  return std::nullopt;
}

}  // namespace

std::vector<Action> Decide(const State& state, absl::Time now) {
  std::vector<Action> actions = JudgeWorkers(state, now);
  if (!actions.empty()) return actions;
  for (const std::string& id : state.watched) {
    if (std::optional<Action> action = DecideJob(state.jobs.at(id), state, now)) {
      actions.push_back(*std::move(action));
    }
  }
  if (!actions.empty()) return actions;
  if (std::optional<Action> launch = DecideLaunch(state, now)) return {*std::move(launch)};
  if (!state.queue.empty() && state.described_workers != state.membership.CountPresent()) {
    return {DescribeQueue{}};
  }
  return {};
}

}  // namespace esteira
