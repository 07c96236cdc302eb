#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/controller/worker_messages.h"

namespace esteira {

struct StepContext {
  int64_t epoch = 0;
  double peak_flops = 0;  // of all ranks; 0: not known
  double flops_per_token = 0;
  bool with_memory = false;                // keep the ranks' measured memory
  const Prediction* prediction = nullptr;  // of the plan; null: not known
};

struct MergedStep {
  StepRecord record;
  std::vector<int64_t> sample_ids;  // in the order of the ranks and of their reports
  bool complete = true;             // every rank's part is in it
};

// The ranks' views of one step as one record. `parts` are by rank; one that is absent was lost on
// its way (at least one is there). Loss, norm, tokens and validation loss must be the same to the
// bit: Internal names two ranks that disagree. Step seconds are the slowest rank's, ratios are
// means, the seconds of each op are sums, peak memory is the largest, hash parts add up modulo 2^64
// when every rank sent one.
absl::StatusOr<MergedStep> MergeStep(const std::vector<std::optional<StepPart>>& parts,
                                     const StepContext& context);

}  // namespace esteira
