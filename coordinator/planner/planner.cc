#include "coordinator/planner/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/schedules/schedules.h"
#include "coordinator/planner/search.h"

namespace esteira {
namespace {

std::string ShapeText(const Shape& shape) {
  return absl::StrCat(shape.stages, " stages x ", shape.replicas, " replicas");
}

std::string LayoutText(const Layout& layout) {
  return absl::StrCat("pipeline_stages ", layout.stages, ", replicas ", layout.replicas, ", zero ",
                      layout.zero, ", micro_batch_size ", layout.micro_batch_size, ", recompute ",
                      layout.recompute == Recompute::kFull ? "full" : "none");
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
