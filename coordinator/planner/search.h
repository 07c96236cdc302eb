// The layouts that a request leaves open, and the best of them by simulation. Pure and
// deterministic; knows nothing of how a choice or a refusal is worded.
//
// Drafts (shape, micro-batch size, schedule, placement of workers, ZeRO level) are looked at
// quickly, chunk by chunk; each stage gets the fastest policy (windows, recomputation) that its
// memory holds. The most promising ones are lowered and simulated.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/simulator.h"

namespace esteira {

// Of a plan: above it it is too large to send and to hold, and a simulation takes too long; fewer,
// larger micro-batches do the same work.
inline constexpr int64_t kMaxInstructions = int64_t{1} << 21;

struct Shape {
  int stages = 1;
  int replicas = 1;
};

// The stages and replicas that the request allows on these workers, by ascending stages. What is
// open is chosen so that all workers are used, as far as that which is given allows.
std::vector<Shape> Shapes(const LayoutRequest& request, int num_workers, int max_stages);

// A draft that was simulated.
struct Candidate {
  Draft draft;
  Prediction prediction;
  bool fits = true;
  int short_rank = -1;      // of those that do not fit: the rank that lacks most
  int64_t short_bytes = 0;  // and how much it lacks
};

struct SearchResult {
  std::vector<Candidate> fitting;      // the chosen one first, then by step time
  std::vector<Candidate> too_large;    // by what they lack
  int64_t num_drafts = 0;              // looked at
  bool too_many_instructions = false;  // drafts were left out as their plans would be too large
};

// The request is one that planner.h has checked.
absl::StatusOr<SearchResult> Search(const JobSpec& job, const ClusterSpec& cluster);

// The draft's plan, lowered without validation, and what it does on the cluster.
struct Rehearsal {
  Plan plan;
  Simulation simulation;
};
absl::StatusOr<Rehearsal> Rehearse(const JobSpec& job, const ClusterSpec& cluster,
                                   const Draft& draft);

}  // namespace esteira
