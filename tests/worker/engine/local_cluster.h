#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "worker/communication/transport.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// A tiny tied GPT-2 and a tiny untied Llama with grouped-query attention, fp32, in a batch that
// neither micro-batches nor replicas divide.
JobSpec ToyJob(Architecture architecture);

// Samples as a pure function of their index: a sequence that a model can learn, and -100 in unequal
// numbers of targets (some samples have no valid target at all).
SampleReader ToySamples(const JobSpec& job);

// The layout in the words of a test's name: "2x3 zero2 1f1b k1".
std::string LayoutText(const LayoutRequest& layout);

// The plan of `job` for as many workers as its layout asks for.
absl::StatusOr<Plan> PlanOf(const JobSpec& job);

// What all ranks reported of one step: the shared numbers, and the sum of the hash's parts.
struct ClusterStep {
  StepReport report;  // of rank 0
  uint64_t parameter_hash = 0;
};

// An engine for each rank of a plan, run by threads of this process. Each rank has a device of its
// own.
class LocalCluster {
 public:
  struct Options {
    std::function<std::unique_ptr<Kernels>(int rank)> kernels;  // null: the CPU's
    std::function<UnitFactory(int rank)> units;                 // null: the model's
    bool check_finite_each_op = true;
    absl::Duration timeout = absl::Minutes(1);
  };
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Make(const JobSpec& job,
                                                            const Options& options);
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Make(const JobSpec& job, Plan plan,
                                                            const Options& options);

  // Runs `body` on a thread for each rank; the first failure by rank.
  absl::Status OnEachRank(const std::function<absl::Status(int rank)>& body);
  // One step on all ranks. Internal when they disagree on a number that they share.
  absl::StatusOr<ClusterStep> Step(int64_t step, const SampleReader& samples);
  absl::StatusOr<double> Evaluate(int64_t batches, const SampleReader& samples);
  // The bits of all optimizer state, in order of rank and unit.
  std::vector<float> StateBits();

  const Plan& plan() const { return plan_; }
  int num_ranks() const { return plan_.layout.num_ranks(); }
  Engine& engine(int rank) { return *ranks_[static_cast<size_t>(rank)].engine; }
  Device& device(int rank) { return *ranks_[static_cast<size_t>(rank)].device; }
  Transport& transport(int rank) { return *transports_[static_cast<size_t>(rank)]; }

 private:
  struct Rank {
    std::unique_ptr<Device> device;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<Engine> engine;
  };
  LocalCluster() = default;

  Plan plan_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Rank> ranks_;
};

}  // namespace esteira
