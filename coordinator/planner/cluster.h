// What the planner knows of the workers that it may use, and of the links between them. Values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/instruction.h"
#include "common/plan/model_spec.h"

namespace esteira {

struct WorkerSpec {
  std::string kind = "cpu";        // of device
  int64_t memory_bytes = 0;        // 0: unknown, no budget
  double flops_fp32 = 100e9;       // achieved, not peak
  double flops_bf16 = 100e9;       // achieved, not peak
  double bytes_per_second = 10e9;  // to and from memory
  double pass_seconds = 0;  // of a synthetic device: what each of F, I, W and R of a block takes
  int host = 0;             // workers with equal numbers share a host

  double flops(Precision precision) const {
    return precision == Precision::kBf16 ? flops_bf16 : flops_fp32;
  }
  bool operator==(const WorkerSpec&) const = default;
};

struct LinkSpec {
  double latency_seconds = 20e-6;
  double bytes_per_second = 2e9;  // of one worker, in each direction
  bool operator==(const LinkSpec&) const = default;
};

// Measured over modelled seconds of each op; 1 where nothing was measured.
using OpFactors = std::array<double, kNumOps>;
constexpr OpFactors NoOpFactors() {
  OpFactors factors{};
  for (double& factor : factors) factor = 1;
  return factors;
}

struct ClusterSpec {
  std::vector<WorkerSpec> workers;
  LinkSpec within_host;
  LinkSpec between_hosts;
  OpFactors factors = NoOpFactors();

  int num_workers() const { return static_cast<int>(workers.size()); }
};

// `count` equal workers on one host.
inline ClusterSpec UniformCluster(int count, const WorkerSpec& worker = {}) {
  ClusterSpec cluster;
  cluster.workers.assign(static_cast<size_t>(count > 0 ? count : 0), worker);
  return cluster;
}

}  // namespace esteira
