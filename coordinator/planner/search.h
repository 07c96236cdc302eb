// The layouts that a request leaves open, and the best of them by simulation. Pure and
// deterministic; knows nothing of how a refusal is worded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "coordinator/planner/planner.h"

namespace esteira {

// Above it a plan is too large to send and to hold; fewer, larger micro-batches do the same work.
inline constexpr int64_t kMaxInstructions = int64_t{1} << 21;

struct Shape {
  int stages = 1;
  int replicas = 1;
};

// The stages and replicas that the request allows on these workers, by ascending stages. What is
// open is chosen so that all workers are used, as far as that which is given allows.
std::vector<Shape> Shapes(const LayoutRequest& request, int num_workers, int max_stages);

// A layout that was tried, with what it would cost.
struct Candidate {
  Layout layout;
  Prediction prediction;
};

struct SearchResult {
  std::optional<Candidate> fastest;   // of those that fit
  std::optional<Candidate> smallest;  // of those that do not
};

// Tries every shape, power of two of a micro-batch and recomputation that the request leaves open,
// each with the lowest ZeRO level that fits. A layout replaces an earlier one when it is faster by
// more than the model can be trusted. The request is one that planner.h has checked. Plans too
// large to hold are left out.
absl::StatusOr<SearchResult> Search(const JobSpec& job, const ClusterSpec& cluster);

int LargestRank(const Prediction& prediction);
int64_t PeakBytes(const Prediction& prediction);

}  // namespace esteira
