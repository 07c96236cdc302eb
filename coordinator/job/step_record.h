#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

// One optimizer step of a job, as all its ranks agreed on it. The fields are the contract's.
struct StepRecord {
  int64_t step = 0;  // from 1
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  int64_t valid_tokens = 0;
  bool skipped = false;
  std::string skip_cause;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double model_flops_utilization = 0;  // 0: the peak rate of the workers is not known
  double bubble_ratio = 0;
  double exposed_communication_ratio = 0;
  std::string parameter_hash;  // empty: not asked for at this step
  int64_t epoch = 0;
  std::optional<double> validation_loss;
  std::vector<MemoryUse> memory;             // by rank; on the first step of an epoch only
  std::array<double, kNumOps> op_seconds{};  // summed over the ranks
  int64_t peak_bytes = 0;                    // of the rank that holds most
  MemoryUse peak_memory;                     // the most that any rank holds, kind by kind
  double predicted_step_seconds = 0;         // by the plan
  double predicted_bubble_ratio = 0;
  int64_t predicted_peak_bytes = 0;
};

// The bits of a double as 16 hex digits.
std::string BitsOf(double value);

}  // namespace esteira
