#include "coordinator/controller/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace esteira {

bool WorkerGroup::AllDone() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.done(); });
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

std::string QueueMessage(const JobNeeds& needs, int present_workers) {
  if (needs.min_workers > present_workers) {
    return absl::StrCat("waiting for workers: needs ", needs.min_workers, ", ", present_workers,
                        present_workers == 1 ? " is registered" : " are registered");
  }
  return absl::StrCat("waiting for ", needs.min_workers,
                      needs.min_workers == 1 ? " idle worker of " : " idle workers of ",
                      present_workers);
}

}  // namespace esteira
