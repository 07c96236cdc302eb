#include "coordinator/planner/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/plan/validate.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/partition.h"
#include "coordinator/planner/schedules/schedules.h"
#include "coordinator/planner/simulator.h"

namespace esteira {
namespace {

// Above it a plan is too large to send and to hold; fewer, larger micro-batches do the same work.
constexpr int64_t kMaxInstructions = int64_t{1} << 23;
constexpr int64_t kLargestTriedMicroBatch = 64;

struct Shape {
  int stages = 1;
  int replicas = 1;
};

// A layout that was tried, with what it would cost.
struct Candidate {
  Layout layout;
  Prediction prediction;
};

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::string ShapeText(const Shape& shape) {
  return absl::StrCat(shape.stages, " stages x ", shape.replicas, " replicas");
}

std::string LayoutText(const Layout& layout) {
  return absl::StrCat("pipeline_stages ", layout.stages, ", replicas ", layout.replicas, ", zero ",
                      layout.zero, ", micro_batch_size ", layout.micro_batch_size, ", recompute ",
                      layout.recompute == Recompute::kFull ? "full" : "none");
}

// The stages and replicas that the request allows on these workers, by ascending stages.
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

absl::Status CheckNumbers(const JobSpec& job, const ClusterSpec& cluster) {
  const LayoutRequest& request = job.layout;
  if (cluster.num_workers < 1) {
    return absl::InvalidArgumentError("there is no worker to plan for; add workers");
  }
  if (request.chunks_per_stage.value_or(1) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.chunks_per_stage ", *request.chunks_per_stage,
        " is not built in: the schedules ", ScheduleNames(), " hold one chunk per stage; use 1"));
  }
  if (FindSchedule(request.schedule.value_or("1f1b")) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.pipeline_schedule \"", *request.schedule,
                     "\" is not built in; use one of ", ScheduleNames()));
  }
  const int zero = request.zero.value_or(0);
  if (zero < 0 || zero > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.zero ", zero, " does not exist; use 0, 1, 2 or 3"));
  }
  if (request.stages.value_or(1) < 1 || request.replicas.value_or(1) < 1 ||
      request.micro_batch_size.value_or(1) < 1 || request.reduce_every.value_or(kAll) < 0 ||
      request.gather_for.value_or(1) < 0) {
    return absl::InvalidArgumentError("the numbers of a layout are at least 1");
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const JobSpec& job, const ClusterSpec& cluster) {
  const LayoutRequest& request = job.layout;
  const int max_stages = NumComputeUnits(job.model);
  if (request.stages.value_or(1) > max_stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.pipeline_stages ", *request.stages, " is more than the ",
                     max_stages, " units of the model (", job.model.num_layers,
                     " layers, the embedding and the head); use at most ", max_stages));
  }
  if (!Shapes(request, cluster.num_workers, max_stages).empty()) return absl::OkStatus();
  const Shape asked{request.stages.value_or(1), request.replicas.value_or(1)};
  std::vector<std::string> fitting;
  LayoutRequest other;
  if (asked.stages <= cluster.num_workers) {
    other.stages = asked.stages;
    fitting.push_back(ShapeText(Shapes(other, cluster.num_workers, max_stages).front()));
  }
  for (const Shape& shape : Shapes({}, cluster.num_workers, max_stages)) {
    if (shape.stages != asked.stages) fitting.push_back(ShapeText(shape));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      ShapeText(asked), " need ", int64_t{asked.stages} * asked.replicas,
      " workers, and there are ", cluster.num_workers,
      "; these fit: ", absl::StrJoin(fitting, ", "), "; or leave a field out and it is chosen"));
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
bool IsTooLarge(const JobSpec& job, const Layout& layout) {
  const double micro_batches =
      static_cast<double>(layout.global_batch_size) / static_cast<double>(layout.micro_batch_size) +
      layout.replicas;
  return 9.0 * micro_batches * NumComputeUnits(job.model) > static_cast<double>(kMaxInstructions);
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

int LargestRank(const Prediction& prediction) {
  const auto largest = std::max_element(
      prediction.memory.begin(), prediction.memory.end(),
      [](const MemoryUse& a, const MemoryUse& b) { return a.total() < b.total(); });
  return static_cast<int>(largest - prediction.memory.begin());
}

int64_t PeakBytes(const Prediction& prediction) {
  return prediction.memory[static_cast<size_t>(LargestRank(prediction))].total();
}

bool Fits(const Prediction& prediction, const ClusterSpec& cluster) {
  return cluster.memory_bytes_per_worker == 0 ||
         PeakBytes(prediction) <= cluster.memory_bytes_per_worker;
}

struct SearchResult {
  std::optional<Candidate> fastest;   // of those that fit
  std::optional<Candidate> smallest;  // of those that do not
};

absl::StatusOr<SearchResult> Search(const JobSpec& job, const ClusterSpec& cluster) {
  SearchResult result;
  for (const std::vector<Layout>& layouts : OpenLayouts(job, cluster)) {
    for (const Layout& layout : layouts) {
      if (IsTooLarge(job, layout)) continue;
      ASSIGN_OR_RETURN(Candidate candidate, Try(job, cluster, layout));
      const Prediction& prediction = candidate.prediction;
      if (Fits(prediction, cluster)) {
        if (!result.fastest.has_value() ||
            prediction.step_seconds < result.fastest->prediction.step_seconds) {
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

// A job like `job` that leaves one thing after the other to the planner, until something fits.
std::string NearestThatFits(JobSpec job, const ClusterSpec& cluster) {
  const auto open_zero = [](LayoutRequest& request) { request.zero.reset(); };
  const auto open_recompute = [](LayoutRequest& request) { request.recompute = "auto"; };
  const auto open_size = [](LayoutRequest& request) { request.micro_batch_size.reset(); };
  const auto open_shape = [](LayoutRequest& request) {
    request.stages.reset();
    request.replicas.reset();
  };
  using Opening = void (*)(LayoutRequest&);
  for (Opening opening :
       {Opening{open_zero}, Opening{open_recompute}, Opening{open_size}, Opening{open_shape}}) {
    opening(job.layout);
    const absl::StatusOr<SearchResult> result = Search(job, cluster);
    if (result.ok() && result->fastest.has_value()) {
      return absl::StrCat("this fits: ", LayoutText(result->fastest->layout));
    }
  }
  return "no layout on these workers fits; use more workers, more memory, a smaller model or a "
         "shorter sequence";
}

absl::Status OutOfMemory(const JobSpec& job, const ClusterSpec& cluster,
                         const Candidate& smallest) {
  const int rank = LargestRank(smallest.prediction);
  const MemoryUse& use = smallest.prediction.memory[static_cast<size_t>(rank)];
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: with ", LayoutText(smallest.layout), ", rank ", rank, " (stage ",
      smallest.layout.StageOfRank(rank), ") needs ", use.total(), " bytes (parameters ",
      use.parameters, ", gradients ", use.gradients, ", optimizer ", use.optimizer, ", slots ",
      use.slots, ", workspace ", use.workspace, "), ",
      use.total() - cluster.memory_bytes_per_worker, " more than the ",
      cluster.memory_bytes_per_worker, " of a worker; ", NearestThatFits(job, cluster)));
}

absl::StatusOr<Candidate> Choose(const JobSpec& job, const ClusterSpec& cluster) {
  RETURN_IF_ERROR(CheckNumbers(job, cluster));
  RETURN_IF_ERROR(CheckShape(job, cluster));
  ASSIGN_OR_RETURN(SearchResult result, Search(job, cluster));
  if (result.fastest.has_value()) return *std::move(result.fastest);
  if (result.smallest.has_value()) return OutOfMemory(job, cluster, *result.smallest);
  return absl::InvalidArgumentError(
      absl::StrCat("training.micro_batch_size: a step would have more than ", kMaxInstructions,
                   " instructions; use a larger micro_batch_size or a smaller global_batch_size"));
}

}  // namespace

absl::StatusOr<Layout> ChooseLayout(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(Candidate chosen, Choose(job, cluster));
  return std::move(chosen.layout);
}

absl::StatusOr<Plan> MakePlan(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(Candidate chosen, Choose(job, cluster));
  ASSIGN_OR_RETURN(Plan generated, Generate(job.model, chosen.layout, job.precision));
  ASSIGN_OR_RETURN(Plan plan, Lower(std::move(generated)));
  plan.prediction = std::move(chosen.prediction);
  return plan;
}

}  // namespace esteira
