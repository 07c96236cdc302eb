#include "coordinator/controller/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace esteira {

bool WorkerGroup::AllDone() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.done(); });
}

bool WorkerGroup::AllReady() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const RankState& rank) { return rank.ready.has_value(); });
}

bool WorkerGroup::VerdictWaits(absl::Time now) const {
  return verdict && now < verdict->deadline && !AllDone() && !parts.empty() &&
         parts.begin()->first <= verdict->after_step;
}

void State::AddJob(ActiveJob job) {
  const Job& record = job.job;
  if (record.state == JobState::kQueued) {
    queue.emplace(-record.priority, record.sequence, record.id);
  } else {
    watched.insert(record.id);
  }
  jobs.insert_or_assign(record.id, std::move(job));
}

void State::Dequeue(const Job& job) { queue.erase({-job.priority, job.sequence, job.id}); }

RankState* State::FindRank(const Assignment& place, const std::string& worker) {
  const auto it = jobs.find(place.job_id);
  if (it == jobs.end() || !it->second.group || it->second.job.epoch != place.epoch) return nullptr;
  std::vector<RankState>& ranks = it->second.group->ranks;
  if (place.rank < 0 || static_cast<size_t>(place.rank) >= ranks.size()) return nullptr;
  RankState& rank = ranks[static_cast<size_t>(place.rank)];
  return rank.worker == worker && !rank.gone ? &rank : nullptr;
}

void State::Postpone(absl::Duration duration, absl::Time now) {
  membership.RenewLeases(now);
  for (auto& [id, active] : jobs) {
    if (!active.group) continue;
    WorkerGroup& group = *active.group;
    group.deadline += duration;
    group.start_deadline += duration;
    if (group.verdict) group.verdict->deadline += duration;
    if (group.first_echo) *group.first_echo += duration;
    for (RankState& rank : group.ranks) {
      if (rank.missing_since) *rank.missing_since += duration;
    }
  }
}

std::string QueueMessage(const ActiveJob& active, int present_workers) {
  const int needed = active.MinWorkers();
  const std::string why =
      active.too_few_workers < active.needs.min_workers
          ? ""
          : absl::StrCat("; the memory of ", active.too_few_workers, " is too little");
  if (needed > present_workers) {
    return absl::StrCat("waiting for workers: needs ", needed, ", ", present_workers,
                        present_workers == 1 ? " is registered" : " are registered", why);
  }
  return absl::StrCat("waiting for ", needed,
                      needed == 1 ? " idle worker of " : " idle workers of ", present_workers, why);
}

}  // namespace esteira
