#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/model_spec.h"

namespace esteira {

inline constexpr int kAll = 0;  // of a window: one window over all micro-batches

// What a stage does in its own way; the same on all its ranks.
struct StagePolicy {
  int reduce_every = kAll;  // k: gradients are reduced after k micro-batches
  int gather_for = 1;       // g: parameters stay gathered for g micro-batches (ZeRO 3)
  bool recompute = false;   // its blocks keep their input only, and run again for the backward pass
  int lookahead =
      1;  // compute instructions by which communication may start early or end late; 0: none
  bool operator==(const StagePolicy&) const = default;
};

// Consecutive samples of the global batch; the last ones of a replica may be short or empty.
struct MicroBatch {
  int64_t first_sample = 0;  // within the global batch
  int64_t num_samples = 0;
  bool operator==(const MicroBatch&) const = default;
};

// How a job is spread: everything that the planner chose, what of the job its buffers and messages
// follow from, and nothing about hosts or addresses.
struct Layout {
  int stages = 1;
  int chunks_per_stage = 1;
  int replicas = 1;
  int zero = 0;                                                     // 0-3
  std::string schedule = "1f1b";                                    // a name in planner/schedules
  std::vector<StagePolicy> policies = std::vector<StagePolicy>(1);  // by stage
  std::vector<int> boundaries;    // chunk c holds compute units [boundaries[c], boundaries[c+1])
  int64_t global_batch_size = 0;  // sequences
  int64_t micro_batch_size = 0;   // sequences, at most
  int64_t sequence_length = 0;
  Numerics numerics = Numerics::kFast;
  GradientTraffic gradient_traffic = GradientTraffic::kFull;

  const StagePolicy& policy(int stage) const { return policies[static_cast<size_t>(stage)]; }
  void SetPolicies(const StagePolicy& policy) {
    policies.assign(static_cast<size_t>(stages), policy);
  }
  int num_ranks() const { return stages * replicas; }
  int num_chunks() const { return stages * chunks_per_stage; }
  // Micro-batches of one replica; the same for all: a replica with fewer samples has empty
  // micro-batches at its end.
  int num_micro_batches() const;
  // The samples of a replica's micro-batch, from 0: the global batch is cut into micro-batches, and
  // replica q has those from q * num_micro_batches() on.
  MicroBatch MicroBatchOf(int replica, int micro_batch) const;
  int RankOf(int stage, int replica) const { return replica * stages + stage; }
  int StageOfRank(int rank) const { return rank % stages; }
  int ReplicaOfRank(int rank) const { return rank / stages; }
  bool operator==(const Layout&) const = default;
};

}  // namespace esteira
