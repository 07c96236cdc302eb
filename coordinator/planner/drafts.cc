#include "coordinator/planner/drafts.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "coordinator/planner/partition.h"
#include "coordinator/planner/schedules/csv.h"

namespace esteira {
namespace {

constexpr int64_t kLargestTriedMicroBatch = 64;
// Chunks of a stage that are tried when the request leaves them open.
constexpr int kTriedChunks[] = {2, 4};

// A schedule that a frame may have, and its chunks.
struct Choice {
  std::string name;
  PipelineOps pipeline;
  int chunks_per_stage = 1;
};

std::vector<int> ChunkCounts(const LayoutRequest& request, const Schedule& schedule) {
  if (request.chunks_per_stage.has_value()) return {*request.chunks_per_stage};
  if (schedule.max_chunks_per_stage <= 2) return {schedule.min_chunks_per_stage};
  return {std::begin(kTriedChunks), std::end(kTriedChunks)};
}

std::vector<Choice> Choices(const JobSpec& job, const Shape& shape, int micro_batches) {
  const LayoutRequest& request = job.layout;
  const std::string wanted = request.schedule.value_or(std::string(kAutoSchedule));
  std::vector<Choice> choices;
  if (absl::StartsWith(wanted, kCsvPrefix)) {
    auto read = ReadCsvSchedule(request.schedule_csv);
    CsvSchedule* const csv = std::get_if<CsvSchedule>(&read);
    const bool fits = csv != nullptr && csv->micro_batches == micro_batches &&
                      static_cast<int>(csv->pipeline.ops.size()) == shape.stages;
    if (fits) choices.push_back({wanted, std::move(csv->pipeline), csv->chunks_per_stage});
    return choices;
  }
  for (const Schedule& schedule : TrainingSchedules()) {
    if (wanted != kAutoSchedule && wanted != schedule.name) continue;
    for (int chunks : ChunkCounts(request, schedule)) {
      if (chunks < schedule.min_chunks_per_stage || chunks > schedule.max_chunks_per_stage)
        continue;
      if (shape.stages * chunks > NumComputeUnits(job.model)) continue;
      // On one stage the simplest schedule is as good as any.
      const bool pointless = wanted == kAutoSchedule && shape.stages == 1 && !choices.empty();
      if (pointless) continue;
      choices.push_back(
          {schedule.name, schedule.generate({shape.stages, chunks, micro_batches}), chunks});
    }
  }
  return choices;
}

// Which worker holds which rank: in the given order (a pipeline's stages side by side), or stage by
// stage (a stage's replicas side by side), the fastest workers first.
std::vector<std::vector<int>> Placements(const ClusterSpec& cluster, const Shape& shape,
                                         Precision precision) {
  std::vector<int> by_speed(cluster.workers.size());
  std::iota(by_speed.begin(), by_speed.end(), 0);
  const auto speed = [&](int index) {
    const WorkerSpec& worker = cluster.workers[static_cast<size_t>(index)];
    return worker.pass_seconds > 0 ? 1 / worker.pass_seconds : worker.flops(precision);
  };
  std::stable_sort(by_speed.begin(), by_speed.end(),
                   [&](int a, int b) { return speed(a) > speed(b); });
  const auto ranks = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.replicas);
  by_speed.resize(ranks);
  const bool even = speed(by_speed.front()) == speed(by_speed.back());
  std::vector<int> pipeline_first = by_speed;
  std::vector<int> replicas_first(ranks);
  const auto stages = static_cast<size_t>(shape.stages);
  const auto replicas = static_cast<size_t>(shape.replicas);
  for (size_t stage = 0; stage < stages; ++stage) {
    for (size_t replica = 0; replica < replicas; ++replica) {
      replicas_first[replica * stages + stage] = by_speed[stage * replicas + replica];
    }
  }
  std::set<int> hosts;
  for (int index : by_speed) hosts.insert(cluster.workers[static_cast<size_t>(index)].host);
  // Slow workers side by side in one stage hold back that stage only.
  if (!even) return {replicas_first};
  if (hosts.size() == 1 || shape.stages == 1 || shape.replicas == 1) return {pipeline_first};
  return {pipeline_first, replicas_first};
}

// Costs of the units on workers of each kind that was asked for.
class CostsByWorker {
 public:
  CostsByWorker(const JobSpec& job, int64_t micro_batch_size)
      : job_(job), micro_batch_size_(micro_batch_size) {}

  const std::vector<double>& Of(const WorkerSpec& worker, bool recompute) {
    const auto same = [&](const Entry& entry) {
      const WorkerSpec& other = entry.worker;
      return entry.recompute == recompute && other.flops_fp32 == worker.flops_fp32 &&
             other.flops_bf16 == worker.flops_bf16 && other.pass_seconds == worker.pass_seconds &&
             other.bytes_per_second == worker.bytes_per_second;
    };
    const auto found = std::find_if(entries_.begin(), entries_.end(), same);
    if (found != entries_.end()) return found->costs;
    entries_.push_back({worker, recompute,
                        UnitCosts(job_.model, micro_batch_size_, job_.sequence_length,
                                  job_.precision, recompute, worker)});
    return entries_.back().costs;
  }

 private:
  struct Entry {
    WorkerSpec worker;
    bool recompute;
    std::vector<double> costs;
  };
  const JobSpec& job_;
  const int64_t micro_batch_size_;
  std::deque<Entry> entries_;
};

// Balanced by what each unit costs on the slowest of the workers that would hold it.
std::vector<int> Boundaries(const ClusterSpec& cluster, const Draft& draft, CostsByWorker& costs) {
  const Layout& layout = draft.layout;
  std::vector<std::vector<double>> by_stage;
  for (int stage = 0; stage < layout.stages; ++stage) {
    std::vector<double> slowest;
    for (int replica = 0; replica < layout.replicas; ++replica) {
      const auto rank = static_cast<size_t>(layout.RankOf(stage, replica));
      const auto worker = static_cast<size_t>(draft.worker_of_rank[rank]);
      const std::vector<double>& of_worker =
          costs.Of(cluster.workers[worker], layout.policy(stage).recompute);
      if (slowest.empty()) slowest = of_worker;
      for (size_t u = 0; u < slowest.size(); ++u) slowest[u] = std::max(slowest[u], of_worker[u]);
    }
    by_stage.push_back(std::move(slowest));
  }
  std::vector<std::vector<double>> by_chunk;
  for (int stage : draft.pipeline.stage_of_chunk) {
    by_chunk.push_back(by_stage[static_cast<size_t>(stage)]);
  }
  return Partition(by_chunk);
}

}  // namespace

std::vector<int64_t> MicroBatchSizes(const JobSpec& job, const Shape& shape) {
  if (job.layout.micro_batch_size.has_value()) return {*job.layout.micro_batch_size};
  const int64_t largest = (job.global_batch_size + shape.replicas - 1) / shape.replicas;
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(largest, kLargestTriedMicroBatch); size *= 2) {
    sizes.push_back(size);
  }
  return sizes;
}

std::vector<int> ZeroLevels(const LayoutRequest& request, int replicas) {
  if (request.zero.has_value()) return {*request.zero};
  if (replicas == 1) return {0};  // there is nobody to share with
  return {0, 1, 2, 3};
}

std::vector<StagePolicy> PolicyLadder(const LayoutRequest& request, int zero, int stages,
                                      int micro_batches) {
  // Windows of a whole round of micro-batches help schedules that go through a chunk in rounds.
  std::vector<int> reductions = {kAll};
  if (zero >= 2) {
    if (stages > 1 && stages < micro_batches) reductions.push_back(stages);
    reductions.push_back(1);
  }
  std::vector<int> gathers = {kAll};
  if (zero == 3) {
    if (stages > 1 && stages < micro_batches) gathers.push_back(stages);
    gathers.push_back(1);
  }
  if (request.reduce_every.has_value()) reductions = {*request.reduce_every};
  if (request.gather_for.has_value()) {
    gathers = {*request.gather_for};
  } else if (zero < 3) {
    gathers = {1};  // nothing is gathered
  }
  std::vector<bool> recomputes = {false};
  if (request.recompute == "full") recomputes = {true};
  if (request.recompute == "auto") recomputes = {false, true};
  std::vector<StagePolicy> ladder;
  for (const bool recompute : recomputes) {
    size_t g = 0, k = 0;
    ladder.push_back({reductions[k], gathers[g], recompute});
    // Gradients first: an element of a window is no smaller than one of gathered parameters.
    while (k + 1 < reductions.size()) ladder.push_back({reductions[++k], gathers[g], recompute});
    while (g + 1 < gathers.size()) ladder.push_back({reductions[k], gathers[++g], recompute});
  }
  for (StagePolicy& policy : ladder) policy.lookahead = request.lookahead.value_or(1);
  return ladder;
}

std::vector<int64_t> Budgets(const ClusterSpec& cluster, const Draft& draft) {
  std::vector<int64_t> budgets(static_cast<size_t>(draft.layout.stages), 0);
  for (int rank = 0; rank < draft.layout.num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(draft.worker_of_rank[static_cast<size_t>(rank)]);
    const int64_t bytes = cluster.workers[index].memory_bytes;
    int64_t& budget = budgets[static_cast<size_t>(draft.layout.StageOfRank(rank))];
    if (bytes > 0 && (budget == 0 || bytes < budget)) budget = bytes;
  }
  return budgets;
}

std::vector<Frame> FramesOf(const JobSpec& job, const ClusterSpec& cluster, const Shape& shape,
                            int64_t micro_batch_size) {
  std::vector<Frame> frames;
  Layout layout;
  layout.stages = shape.stages;
  layout.replicas = shape.replicas;
  layout.global_batch_size = job.global_batch_size;
  layout.micro_batch_size = micro_batch_size;
  layout.sequence_length = job.sequence_length;
  layout.numerics = job.numerics;
  layout.gradient_traffic = job.gradient_traffic;
  layout.zero = ZeroLevels(job.layout, shape.replicas).front();
  layout.SetPolicies(
      PolicyLadder(job.layout, layout.zero, shape.stages, layout.num_micro_batches()).front());
  CostsByWorker costs(job, micro_batch_size);
  const auto placements = Placements(cluster, shape, job.precision);
  for (Choice& choice : Choices(job, shape, layout.num_micro_batches())) {
    layout.schedule = choice.name;
    layout.chunks_per_stage = choice.chunks_per_stage;
    for (const std::vector<int>& placement : placements) {
      Frame frame{{layout, choice.pipeline, placement}, static_cast<int>(frames.size())};
      frame.draft.layout.boundaries = Boundaries(cluster, frame.draft, costs);
      frames.push_back(std::move(frame));
    }
  }
  return frames;
}

}  // namespace esteira
