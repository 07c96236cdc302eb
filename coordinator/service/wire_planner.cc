#include "coordinator/service/wire_planner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/job_codec.h"
#include "common/plan/plan_codec.h"
#include "esteira/v1/job.pb.h"
#include "esteira/v1/plan.pb.h"

namespace esteira {
namespace {

// Of the message around a job and its plan.
constexpr size_t kEnvelopeBytes = 4096;

absl::StatusOr<JobSpec> DecodeSpec(const std::string& spec_bytes) {
  v1::JobSpec message;
  if (!message.ParseFromString(spec_bytes)) {
    return absl::InvalidArgumentError("the spec is not a JobSpec message");
  }
  std::vector<Fault> faults;
  JobSpec spec = DecodeJob(message, faults);
  RETURN_IF_ERROR(FaultsStatus(faults));
  return spec;
}

// More workers would not help: a plan is as long with them.
absl::Status CheckSize(size_t spec_bytes, size_t plan_bytes, size_t max_bytes) {
  if (spec_bytes + plan_bytes + kEnvelopeBytes <= max_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("training.micro_batch_size: the plan has ", plan_bytes, " bytes and the job ",
                   spec_bytes, ", more than the ", max_bytes,
                   " that a worker can be sent; use a larger micro_batch_size or a smaller "
                   "global_batch_size"));
}

}  // namespace

absl::StatusOr<JobNeeds> WirePlanner::Check(const std::string& spec_bytes) {
  ASSIGN_OR_RETURN(const JobSpec spec, DecodeSpec(spec_bytes));
  const int64_t ranks = int64_t{spec.layout.stages.value_or(1)} * spec.layout.replicas.value_or(1);
  if (ranks > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism: pipeline_stages * replicas is ",
                                                   ranks, "; at most ", kMaxRanks,
                                                   " ranks are supported"));
  }
  return JobNeeds{spec.name, static_cast<int>(ranks)};
}

absl::StatusOr<PlannedJob> WirePlanner::Plan(const std::string& spec_bytes,
                                             const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(const JobSpec spec, DecodeSpec(spec_bytes));
  ASSIGN_OR_RETURN(const esteira::Plan plan, make_plan_(spec, cluster));
  if (plan.layout.num_ranks() < 1 || plan.layout.num_ranks() > cluster.num_workers()) {
    return absl::InternalError(absl::StrCat("the planner made a plan for ", plan.layout.num_ranks(),
                                            " ranks, for ", cluster.num_workers(), " workers"));
  }
  PlannedJob planned;
  v1::PlanProto message = EncodePlan(plan);
  message.clear_worker_of_rank();  // as long as there are ranks, and none of a worker's business
  planned.plan_bytes = PackPlan(message);
  RETURN_IF_ERROR(CheckSize(spec_bytes.size(), planned.plan_bytes.size(), max_bytes_));
  planned.summary = PlanSummary{plan.layout, plan.prediction, message.digest()};
  planned.worker_of_rank = plan.worker_of_rank;
  planned.flops_per_token = ModelFlopsPerToken(plan.model, plan.layout.sequence_length);
  return planned;
}

}  // namespace esteira
