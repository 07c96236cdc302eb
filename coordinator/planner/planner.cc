#include "coordinator/planner/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "coordinator/planner/explain.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/schedules/csv.h"
#include "coordinator/planner/schedules/schedules.h"
#include "coordinator/planner/search.h"

namespace esteira {
namespace {

std::string ShapeText(const Shape& shape) {
  return absl::StrCat(shape.stages, " stages x ", shape.replicas, " replicas");
}

absl::Status CheckCsv(const LayoutRequest& request) {
  const auto read = ReadCsvSchedule(request.schedule_csv);
  if (const CsvFault* fault = std::get_if<CsvFault>(&read)) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.pipeline_schedule ",
                                                   *request.schedule, ": ",
                                                   MarkFault(request.schedule_csv, *fault)));
  }
  const CsvSchedule& csv = std::get<CsvSchedule>(read);
  const auto rows = static_cast<int>(csv.pipeline.ops.size());
  if (request.stages.value_or(rows) != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_schedule ", *request.schedule, " has ", rows,
        " rows, and parallelism.pipeline_stages is ", *request.stages, "; give as many rows"));
  }
  const int chunks = csv.chunks_per_stage;
  if (request.chunks_per_stage.value_or(chunks) != chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_schedule ", *request.schedule, " has ", chunks,
        " chunks a stage, and parallelism.chunks_per_stage is ", *request.chunks_per_stage));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const JobSpec& job) {
  const LayoutRequest& request = job.layout;
  const std::string name = request.schedule.value_or(std::string(kAutoSchedule));
  const int chunks = request.chunks_per_stage.value_or(1);
  if (chunks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.chunks_per_stage ", chunks, " must be at least 1"));
  }
  if (absl::StartsWith(name, kCsvPrefix)) return CheckCsv(request);
  if (name == kAutoSchedule) return absl::OkStatus();
  const Schedule* schedule = FindSchedule(name);
  if (schedule == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.pipeline_schedule \"", name,
                                                   "\" is not built in; use one of ",
                                                   ScheduleNames(), ", auto or csv:PATH"));
  }
  if (request.chunks_per_stage.has_value() &&
      (chunks < schedule->min_chunks_per_stage || chunks > schedule->max_chunks_per_stage)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.chunks_per_stage ", chunks, ": the schedule ", name, " has ",
                     schedule->min_chunks_per_stage, "; use that, or leave the field out"));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const JobSpec& job, const ClusterSpec& cluster) {
  const LayoutRequest& request = job.layout;
  if (cluster.num_workers() < 1) {
    return absl::InvalidArgumentError("there is no worker to plan for; add workers");
  }
  RETURN_IF_ERROR(CheckSchedule(job));
  const int zero = request.zero.value_or(0);
  if (zero < 0 || zero > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.zero ", zero, " does not exist; use 0, 1, 2 or 3"));
  }
  if (request.stages.value_or(1) < 1 || request.replicas.value_or(1) < 1 ||
      request.micro_batch_size.value_or(1) < 1 || request.reduce_every.value_or(kAll) < 0 ||
      request.gather_for.value_or(1) < 0 || request.lookahead.value_or(0) < 0) {
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
  if (!Shapes(request, cluster.num_workers(), max_stages).empty()) return absl::OkStatus();
  const Shape asked{request.stages.value_or(1), request.replicas.value_or(1)};
  std::vector<std::string> fitting;
  LayoutRequest other;
  if (asked.stages <= cluster.num_workers()) {
    other.stages = asked.stages;
    fitting.push_back(ShapeText(Shapes(other, cluster.num_workers(), max_stages).front()));
  }
  for (const Shape& shape : Shapes({}, cluster.num_workers(), max_stages)) {
    if (shape.stages != asked.stages) fitting.push_back(ShapeText(shape));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      ShapeText(asked), " need ", int64_t{asked.stages} * asked.replicas,
      " workers, and there are ", cluster.num_workers(),
      "; these fit: ", absl::StrJoin(fitting, ", "), "; or leave a field out and it is chosen"));
}

// Why no draft was left, for a request whose shape fits.
absl::Status NoDraft(const JobSpec& job, const ClusterSpec& cluster, const SearchResult& result) {
  const LayoutRequest& request = job.layout;
  const int units = NumComputeUnits(job.model);
  if (result.too_many_instructions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.micro_batch_size: a step would have more than ", kMaxInstructions,
        " instructions; use a larger micro_batch_size or a smaller global_batch_size"));
  }
  if (absl::StartsWith(request.schedule.value_or(""), kCsvPrefix)) {
    const auto csv = std::get<CsvSchedule>(ReadCsvSchedule(request.schedule_csv));
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.pipeline_schedule ", *request.schedule, " has ", csv.pipeline.ops.size(),
        " rows and ", csv.micro_batches, " micro-batches, which no split of ",
        job.global_batch_size, " sequences over ", cluster.num_workers(),
        " workers gives; set pipeline_stages, replicas and micro_batch_size such that "
        "micro_batch_size * replicas * micro-batches is global_batch_size"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "parallelism: the schedule ", request.schedule.value_or(std::string(kAutoSchedule)),
      " needs at least one unit for each chunk, and the model has ", units, " (",
      job.model.num_layers,
      " layers, the embedding and the head); use fewer stages, fewer chunks, or another schedule"));
}

absl::StatusOr<SearchResult> Choose(const JobSpec& job, const ClusterSpec& cluster) {
  RETURN_IF_ERROR(CheckNumbers(job, cluster));
  RETURN_IF_ERROR(CheckShape(job, cluster));
  ASSIGN_OR_RETURN(SearchResult result, Search(job, cluster));
  if (!result.fitting.empty()) return result;
  if (!result.too_large.empty()) return OutOfMemory(job, cluster, result.too_large.front());
  return NoDraft(job, cluster, result);
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(SearchResult result, Choose(job, cluster));
  Candidate& chosen = result.fitting.front();
  ASSIGN_OR_RETURN(Plan generated,
                   Generate(job.model, chosen.draft.layout, job.precision, chosen.draft.pipeline));
  generated.worker_of_rank = std::move(chosen.draft.worker_of_rank);
  ASSIGN_OR_RETURN(Plan plan, Lower(std::move(generated)));
  plan.prediction = std::move(chosen.prediction);
  return plan;
}

absl::StatusOr<PlannedStep> PlanStep(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(const SearchResult result, Choose(job, cluster));
  const Candidate& chosen = result.fitting.front();
  ASSIGN_OR_RETURN(Rehearsal rehearsal, Rehearse(job, cluster, chosen.draft));
  rehearsal.plan.prediction = chosen.prediction;
  return PlannedStep{std::move(rehearsal.plan), std::move(rehearsal.simulation), Explain(result)};
}

}  // namespace esteira
