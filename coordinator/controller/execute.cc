#include "coordinator/controller/execute.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/controller/worker_specs.h"

namespace esteira {
namespace {

// The kind of device that all these workers have; empty when they have several.
std::string KindOf(const ClusterSpec& cluster, const std::vector<int>& workers) {
  const auto kind = [&](int worker) { return cluster.workers[static_cast<size_t>(worker)].kind; };
  const bool one = std::all_of(workers.begin(), workers.end(),
                               [&](int worker) { return kind(worker) == kind(workers.front()); });
  return one && !workers.empty() ? kind(workers.front()) : "";
}

class Executor {
 public:
  Executor(Turn& turn, JobPlanner& planner) : turn_(turn), planner_(planner) {}

  void operator()(const LoseWorker& action);
  void operator()(const ForgetWorker& action);
  void operator()(const LoseRank& action);
  void operator()(const LaunchJob& action);
  void operator()(const StartJob& action);
  void operator()(const StopJob& action);
  void operator()(const EndJob& action);
  void operator()(const DropJob& action);
  void operator()(const DescribeQueue& action);

 private:
  ActiveJob& Find(const std::string& job_id) { return turn_.state.jobs.at(job_id); }
  // `offered`: the workers that it was planned for.
  void Configure(ActiveJob& active, const std::vector<std::string>& offered,
                 const ClusterSpec& cluster, PlannedJob planned);
  void ForgetUnmerged(WorkerGroup& group);

  Turn& turn_;
  JobPlanner& planner_;
};

void Executor::operator()(const LoseWorker& action) {
  const WorkerRecord worker = *turn_.state.membership.Find(action.worker);
  if (worker.connected()) {
    turn_.out.closes.emplace_back(
        worker.session,
        absl::UnavailableError(absl::StrCat("the worker counts as lost: ", action.reason)));
  }
  turn_.state.membership.MarkLost(action.worker, action.reason);
  turn_.log.With("worker", action.worker).Warning(absl::StrCat("worker is lost: ", action.reason));
  if (worker.assignment) {
    turn_.LoseRank(*worker.assignment, action.worker,
                   {"WORKER_LOST", absl::StrCat("the worker is lost: ", action.reason)});
  }
}

void Executor::operator()(const ForgetWorker& action) {
  turn_.state.membership.Forget(action.worker);
  turn_.state.progress.erase(action.worker);
}

void Executor::operator()(const LoseRank& action) {
  const ActiveJob& active = Find(action.job_id);
  const std::string worker = active.group->ranks[static_cast<size_t>(action.rank)].worker;
  const Assignment place{action.job_id, active.job.epoch, action.rank};
  turn_.LoseRank(place, worker,
                 {"TRAINER_FAILED", "the worker has no trainer of this job any more"});
  const WorkerRecord* record = turn_.state.membership.Find(worker);
  if (record != nullptr && record->assignment == place) turn_.state.membership.Release(worker);
}

void Executor::operator()(const LaunchJob& action) {
  ActiveJob& active = Find(action.job_id);
  const ClusterSpec cluster =
      ClusterOf(turn_.state.membership, action.workers, turn_.state.op_factors);
  absl::StatusOr<PlannedJob> planned = planner_.Plan(active.job.spec_bytes, cluster);
  const int present = turn_.state.membership.CountPresent();
  if (absl::IsResourceExhausted(planned.status()) &&
      static_cast<int>(action.workers.size()) < present) {
    // It may fit once more workers are idle.
    active.too_few_workers = static_cast<int>(action.workers.size());
    active.job.message = QueueMessage(active, present);
    turn_.SaveJob(active);
    return;
  }
  ++active.job.epoch;
  turn_.MoveJob(active, JobState::kPlanning, "WORKERS_IDLE",
                absl::StrCat("planning for ", action.workers.size(), " idle workers"));
  turn_.metrics.ObserveQueueWait(turn_.now - active.job.submit_time);
  if (!planned.ok()) {
    turn_.MoveJob(active, JobState::kFailed, "PLAN_FAILED",
                  std::string(planned.status().message()));
    turn_.state.watched.erase(action.job_id);
    turn_.state.jobs.erase(action.job_id);
    return;
  }
  Configure(active, action.workers, cluster, *std::move(planned));
}

void Executor::Configure(ActiveJob& active, const std::vector<std::string>& offered,
                         const ClusterSpec& cluster, PlannedJob planned) {
  Job& job = active.job;
  std::vector<std::string> workers;
  for (int index : planned.worker_of_rank) workers.push_back(offered[static_cast<size_t>(index)]);
  job.workers = workers;
  job.plan = planned.summary;
  job.flops_per_token = planned.flops_per_token;
  WorkerGroup& group = active.group.emplace();
  group.factors = cluster.factors;
  group.kind = KindOf(cluster, planned.worker_of_rank);
  group.plan = std::make_shared<const PlannedJob>(std::move(planned));
  group.deadline = turn_.now + turn_.state.options.start_timeout;
  const auto spec = std::make_shared<const std::string>(job.spec_bytes);
  const std::shared_ptr<const std::string> plan(group.plan, &group.plan->plan_bytes);
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    RankState& rank_state = group.ranks.emplace_back();
    rank_state.worker = workers[rank];
    rank_state.last_step = job.step;
    const Assignment place{job.id, job.epoch, static_cast<int>(rank)};
    turn_.state.membership.Assign(workers[rank], place);
    turn_.Send(workers[rank],
               ConfigureCommand{place, spec, plan, turn_.state.options.operation_timeout});
  }
  turn_.MoveJob(active, JobState::kStarting, "PLANNED",
                absl::StrCat("starting trainers on ", workers.size(),
                             workers.size() == 1 ? " worker" : " workers"));
}

void Executor::operator()(const StartJob& action) {
  ActiveJob& active = Find(action.job_id);
  WorkerGroup& group = *active.group;
  group.started = true;
  group.deadline = absl::InfiniteFuture();
  if (active.job.state == JobState::kStarting) {
    active.job.peak_flops = 0;
    for (const RankState& rank : group.ranks) active.job.peak_flops += rank.ready->peak_flops;
    turn_.MoveJob(active, JobState::kRunning, "WORKERS_READY", "training");
  }
  for (const RankState& rank : group.ranks) turn_.SendStart(active, rank.worker);
}

// Nothing of them will be recorded any more, so nothing keeps them from being acknowledged.
void Executor::ForgetUnmerged(WorkerGroup& group) {
  group.parts.clear();
  for (RankState& rank : group.ranks) {
    rank.unmerged.clear();
    turn_.out.heard_workers.insert(rank.worker);
  }
}

void Executor::operator()(const StopJob& action) {
  ActiveJob& active = Find(action.job_id);
  active.group->deadline = turn_.now + turn_.state.options.stop_timeout;
  ForgetUnmerged(*active.group);
  turn_.MoveJob(active, JobState::kStopping, "CANCELLED_BY_USER", "stopping the trainers");
  turn_.AbortRanks(active, "the job was cancelled");
}

void Executor::operator()(const EndJob& action) {
  ActiveJob& active = Find(action.job_id);
  if (action.echo_is_cause) active.job.failures.front().consequence = false;
  const bool stopping = active.job.state == JobState::kStopping;
  turn_.MoveJob(active, action.state, action.reason, action.message);
  if (!active.group) {
    turn_.state.watched.erase(action.job_id);
    turn_.state.jobs.erase(action.job_id);
    return;
  }
  ForgetUnmerged(*active.group);
  for (RankState& rank : active.group->ranks) {
    // A rank that was never heard of again cannot be waited for.
    if (rank.present) continue;
    rank.gone = true;
    turn_.state.membership.AddLost(rank.worker, "not heard of since the coordinator restarted",
                                   turn_.now);
  }
  if (!stopping) turn_.AbortRanks(active, absl::StrCat("the job is over: ", action.message));
}

void Executor::operator()(const DropJob& action) {
  turn_.state.watched.erase(action.job_id);
  turn_.state.jobs.erase(action.job_id);
}

void Executor::operator()(const DescribeQueue&) {
  const int present = turn_.state.membership.CountPresent();
  turn_.state.described_workers = present;
  for (const auto& [priority, sequence, id] : turn_.state.queue) {
    ActiveJob& active = Find(id);
    std::string message = QueueMessage(active, present);
    if (message == active.job.message) continue;
    active.job.message = std::move(message);
    turn_.SaveJob(active);
  }
}

}  // namespace

void Execute(Turn& turn, JobPlanner& planner, const Action& action) {
  std::visit(Executor(turn, planner), action);
}

}  // namespace esteira
