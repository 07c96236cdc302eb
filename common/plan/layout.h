#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/model_spec.h"

namespace esteira {

enum class Recompute { kNone, kFull };

inline constexpr int kAll = 0;  // of a window: one window over all micro-batches

// How a job is spread: everything that the planner chose, and nothing about hosts or addresses.
struct Layout {
  int stages = 1;
  int chunks_per_stage = 1;
  int replicas = 1;
  int zero = 0;                   // 0-3
  std::string schedule = "1f1b";  // a name in planner/schedules
  int reduce_every = kAll;        // k: gradients are reduced after k micro-batches
  int gather_for = 1;             // g: parameters stay gathered for g micro-batches (ZeRO 3)
  Recompute recompute = Recompute::kNone;
  std::vector<int> boundaries;    // chunk c holds compute units [boundaries[c], boundaries[c+1])
  int64_t global_batch_size = 0;  // sequences
  int64_t micro_batch_size = 0;   // sequences, at most
  int64_t sequence_length = 0;

  int num_ranks() const { return stages * replicas; }
  int num_chunks() const { return stages * chunks_per_stage; }
  // Micro-batches of one replica; the same for all: a replica with fewer samples has empty
  // micro-batches at its end.
  int num_micro_batches() const;
  int RankOf(int stage, int replica) const { return replica * stages + stage; }
  int StageOfRank(int rank) const { return rank % stages; }
  int ReplicaOfRank(int rank) const { return rank / stages; }
  bool operator==(const Layout&) const = default;
};

}  // namespace esteira
