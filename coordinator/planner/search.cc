#include "coordinator/planner/search.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/partition.h"
#include "coordinator/planner/simulator.h"

namespace esteira {
namespace {

constexpr int64_t kLargestTriedMicroBatch = 64;
constexpr double kClearlyFaster = 0.99;
// Larger plans are tried only when no smaller one runs.
constexpr int64_t kQuicklyTriedInstructions = int64_t{1} << 18;

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::vector<int64_t> MicroBatchSizes(const JobSpec& job, int replicas) {
  if (job.layout.micro_batch_size.has_value()) return {*job.layout.micro_batch_size};
  const int64_t largest = (job.global_batch_size + replicas - 1) / replicas;
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(largest, kLargestTriedMicroBatch); size *= 2) {
    sizes.push_back(size);
  }
  return sizes;
}

std::vector<Recompute> Recomputes(const std::string& request) {
  if (request == "full") return {Recompute::kFull};
  if (request == "auto") return {Recompute::kNone, Recompute::kFull};
  return {Recompute::kNone};
}

std::vector<int> ZeroLevels(const LayoutRequest& request, int replicas) {
  if (request.zero.has_value()) return {*request.zero};
  if (replicas == 1) return {0};  // there is nobody to share with
  return {0, 1, 2, 3};
}

// The layouts that the request leaves open, those of one (shape, micro-batch, recompute) by
// ascending ZeRO level.
std::vector<std::vector<Layout>> OpenLayouts(const JobSpec& job, const ClusterSpec& cluster) {
  std::vector<std::vector<Layout>> open;
  for (const Shape& shape : Shapes(job.layout, cluster.num_workers, NumComputeUnits(job.model))) {
    for (int64_t micro_batch_size : MicroBatchSizes(job, shape.replicas)) {
      for (Recompute recompute : Recomputes(job.layout.recompute)) {
        Layout layout;
        layout.stages = shape.stages;
        layout.replicas = shape.replicas;
        layout.schedule = job.layout.schedule.value_or("1f1b");
        layout.gather_for = job.layout.gather_for.value_or(1);
        layout.recompute = recompute;
        layout.global_batch_size = job.global_batch_size;
        layout.micro_batch_size = micro_batch_size;
        layout.sequence_length = job.sequence_length;
        layout.boundaries = Partition(UnitCosts(job.model, micro_batch_size, job.sequence_length,
                                                recompute, cluster.flops_per_worker),
                                      shape.stages);
        open.emplace_back();
        for (int zero : ZeroLevels(job.layout, shape.replicas)) {
          layout.zero = zero;
          // Sharded sums save nothing while every window stays open to the end.
          layout.reduce_every = job.layout.reduce_every.value_or(zero >= 2 ? 1 : kAll);
          open.back().push_back(layout);
        }
      }
    }
  }
  return open;
}

// An upper bound of the instructions of all ranks: forward, backward, recomputation, and sharding
// of each.
double MostInstructions(const JobSpec& job, const Layout& layout) {
  const double micro_batches =
      static_cast<double>(layout.global_batch_size) / static_cast<double>(layout.micro_batch_size) +
      layout.replicas;
  return 9.0 * micro_batches * NumComputeUnits(job.model);
}

// Lowered without validation: what MakePlan returns in the end is validated.
absl::StatusOr<Candidate> Try(const JobSpec& job, const ClusterSpec& cluster,
                              const Layout& layout) {
  ASSIGN_OR_RETURN(Plan plan, Generate(job.model, layout, job.precision));
  for (const Pass& pass : Passes()) {
    ASSIGN_OR_RETURN(plan, pass.run(std::move(plan)));
  }
  const CostModel costs(job.model, layout, job.precision, cluster);
  Candidate candidate;
  candidate.layout = layout;
  ASSIGN_OR_RETURN(candidate.prediction,
                   Predict(plan, [&](const Program& program, const Instruction& instruction) {
                     return costs.Seconds(program, instruction);
                   }));
  return candidate;
}

bool Fits(const Prediction& prediction, const ClusterSpec& cluster) {
  return cluster.memory_bytes_per_worker == 0 ||
         PeakBytes(prediction) <= cluster.memory_bytes_per_worker;
}

absl::StatusOr<SearchResult> TryAll(const JobSpec& job, const ClusterSpec& cluster,
                                    int64_t max_instructions) {
  SearchResult result;
  for (const std::vector<Layout>& layouts : OpenLayouts(job, cluster)) {
    for (const Layout& layout : layouts) {
      if (MostInstructions(job, layout) > static_cast<double>(max_instructions)) continue;
      ASSIGN_OR_RETURN(Candidate candidate, Try(job, cluster, layout));
      const Prediction& prediction = candidate.prediction;
      if (Fits(prediction, cluster)) {
        if (!result.fastest.has_value() ||
            prediction.step_seconds < kClearlyFaster * result.fastest->prediction.step_seconds) {
          result.fastest = std::move(candidate);
        }
        break;
      }
      if (!result.smallest.has_value() ||
          PeakBytes(prediction) < PeakBytes(result.smallest->prediction)) {
        result.smallest = std::move(candidate);
      }
    }
  }
  return result;
}

}  // namespace

std::vector<Shape> Shapes(const LayoutRequest& request, int num_workers, int max_stages) {
  std::vector<Shape> shapes;
  if (request.stages.has_value()) {
    const int replicas = request.replicas.value_or(num_workers / *request.stages);
    if (replicas >= 1) shapes.push_back({*request.stages, replicas});
  } else {
    const int share = request.replicas.has_value() ? num_workers / *request.replicas : num_workers;
    for (int stages : Divisors(share)) {
      if (stages > max_stages) break;
      shapes.push_back({stages, request.replicas.value_or(num_workers / stages)});
    }
  }
  std::erase_if(shapes, [&](const Shape& shape) {
    return int64_t{shape.stages} * shape.replicas > num_workers;
  });
  return shapes;
}

int LargestRank(const Prediction& prediction) {
  const auto largest = std::max_element(
      prediction.memory.begin(), prediction.memory.end(),
      [](const MemoryUse& a, const MemoryUse& b) { return a.total() < b.total(); });
  return static_cast<int>(largest - prediction.memory.begin());
}

int64_t PeakBytes(const Prediction& prediction) {
  return prediction.memory[static_cast<size_t>(LargestRank(prediction))].total();
}

absl::StatusOr<SearchResult> Search(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(SearchResult result, TryAll(job, cluster, kQuicklyTriedInstructions));
  if (result.fastest.has_value()) return result;
  return TryAll(job, cluster, kMaxInstructions);
}

}  // namespace esteira
