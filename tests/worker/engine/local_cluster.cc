#include "tests/worker/engine/local_cluster.h"

#include <bit>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "coordinator/planner/planner.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool Agree(const StepReport& a, const StepReport& b) {
  return SameBits(a.loss, b.loss) && SameBits(a.gradient_norm, b.gradient_norm) &&
         SameBits(a.learning_rate, b.learning_rate) && a.tokens == b.tokens &&
         a.valid_tokens == b.valid_tokens && a.skipped == b.skipped &&
         a.non_finite.found == b.non_finite.found && a.non_finite.rank == b.non_finite.rank &&
         a.non_finite.unit == b.non_finite.unit &&
         a.non_finite.micro_batch == b.non_finite.micro_batch;
}

}  // namespace

JobSpec ToyJob(Architecture architecture) {
  JobSpec job;
  job.name = "toy";
  job.model.architecture = architecture;
  job.model.num_layers = 3;
  job.model.hidden_size = 16;
  job.model.num_heads = 4;
  job.model.num_kv_heads = architecture == Architecture::kLlama ? 2 : 4;
  job.model.intermediate_size = architecture == Architecture::kLlama ? 40 : 64;
  job.model.vocab_size = 64;
  job.model.max_sequence_length = 8;
  job.model.tie_embeddings = architecture == Architecture::kGpt2;
  job.sequence_length = 8;
  job.seed = 17;
  job.steps = 20;
  job.global_batch_size = 7;
  job.precision = Precision::kFp32;
  job.gradient_clip_norm = 0.5;
  job.adamw.learning_rate = 1e-2;
  job.schedule.warmup_steps = 3;
  job.layout.stages = 1;
  job.layout.chunks_per_stage = 1;
  job.layout.replicas = 1;
  job.layout.zero = 0;
  job.layout.schedule = "1f1b";
  job.layout.reduce_every = kAll;
  job.layout.gather_for = 1;
  job.layout.micro_batch_size = 2;
  return job;
}

SampleReader ToySamples(const JobSpec& job) {
  const int64_t vocab = job.model.vocab_size;
  const int64_t sequence = job.sequence_length;
  return [vocab, sequence](int64_t first, int64_t count, std::span<int32_t> inputs,
                           std::span<int32_t> targets) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t sample = first + n;
      const int64_t ignored = sample * 5 % (sequence + 1);  // leading targets that do not count
      int64_t token = static_cast<int64_t>(RandomBits(7, 0, static_cast<uint64_t>(sample)) %
                                           static_cast<uint64_t>(vocab));
      for (int64_t t = 0; t < sequence; ++t) {
        const int64_t next = (token * 5 + 3) % vocab;
        const auto at = static_cast<size_t>(n * sequence + t);
        inputs[at] = static_cast<int32_t>(token);
        targets[at] = t < ignored ? kIgnoredTarget : static_cast<int32_t>(next);
        token = next;
      }
    }
    return absl::OkStatus();
  };
}

std::string LayoutText(const LayoutRequest& layout) {
  const auto window = [](int size) {
    return size == kAll ? std::string("all") : absl::StrCat(size);
  };
  return absl::StrCat(*layout.stages, "x", *layout.replicas, " zero", *layout.zero, " ",
                      *layout.schedule, " k", window(*layout.reduce_every), " g",
                      window(*layout.gather_for), " recompute ", layout.recompute);
}

absl::StatusOr<Plan> PlanOf(const JobSpec& job) {
  const ClusterSpec cluster = UniformCluster(*job.layout.stages * *job.layout.replicas);
  return MakePlan(job, cluster);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Make(const JobSpec& job,
                                                                 const Options& options) {
  ASSIGN_OR_RETURN(Plan plan, PlanOf(job));
  return Make(job, std::move(plan), options);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Make(const JobSpec& job, Plan plan,
                                                                 const Options& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster());
  cluster->plan_ = std::move(plan);
  const int num_ranks = cluster->num_ranks();
  cluster->transports_ = MakeInprocTransports(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    Rank& member = cluster->ranks_.emplace_back();
    member.device = MakeCpuDevice({.threads = 1});
    member.kernels = options.kernels ? options.kernels(rank) : MakeCpuKernels(1);
    const EngineOptions engine_options = {
        .rank = rank,
        .operation_timeout = options.timeout,
        .check_finite_each_op = options.check_finite_each_op,
        .make_unit = options.units ? options.units(rank) : MakeUnitCompute};
    ASSIGN_OR_RETURN(member.engine,
                     Engine::Make(cluster->plan_, job, engine_options, *member.device,
                                  *member.kernels, cluster->transport(rank)));
  }
  return cluster;
}

absl::Status LocalCluster::OnEachRank(const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(static_cast<int>(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::StatusOr<ClusterStep> LocalCluster::Step(int64_t step, const SampleReader& samples) {
  std::vector<StepReport> reports(ranks_.size());
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(reports[static_cast<size_t>(rank)],
                     engine(rank).Step(step, samples, /*hash=*/true));
    return absl::OkStatus();
  }));
  ClusterStep result = {.report = reports.front()};
  for (const StepReport& report : reports) {
    if (!Agree(report, reports.front())) return absl::InternalError("ranks disagree on the step");
    result.parameter_hash += *report.parameter_hash_part;
  }
  return result;
}

absl::StatusOr<double> LocalCluster::Evaluate(int64_t batches, const SampleReader& samples) {
  std::vector<double> losses(ranks_.size());
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(losses[static_cast<size_t>(rank)], engine(rank).Evaluate(batches, samples));
    return absl::OkStatus();
  }));
  for (double loss : losses) {
    if (!SameBits(loss, losses.front())) return absl::InternalError("ranks disagree on the loss");
  }
  return losses.front();
}

std::vector<float> LocalCluster::StateBits() {
  std::vector<float> bits;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    for (const UnitState& state : engine(rank).States()) {
      for (std::span<float> part : {state.master, state.m, state.v}) {
        bits.insert(bits.end(), part.begin(), part.end());
      }
    }
  }
  return bits;
}

}  // namespace esteira
