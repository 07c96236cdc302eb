#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/checkpoint/tensor_file.h"
#include "common/plan/model_spec.h"
#include "worker/checkpoint/agreement.h"

namespace esteira {

// The two files of one stage: weights in the job's precision, optimizer state in fp32. Fed with the
// flat buffers of the stage's units, it leaves out the gaps and the padding. Failures stick until
// Finish. Not thread-safe.
class StageFiles {
 public:
  // `units`: those of the stage that have state, in the order in which they will be fed.
  StageFiles(FileSystem& files, const std::string& folder, int stage, int num_stages,
             Precision precision, const std::vector<UnitSpec>& units);

  // Values of `unit`'s flat buffer from element `begin` on. For each unit: all of buffer 0 (master)
  // ascending, then 1 (m), then 2 (v).
  void Append(const UnitSpec& unit, int buffer, int64_t begin, std::span<const float> values);
  RankOutcome Finish();

 private:
  ElementType weight_type_;
  TensorFile weights_;
  TensorFile optimizer_;
};

}  // namespace esteira
