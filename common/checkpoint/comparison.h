// What differs between two checkpoints, parameter by parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/checkpoint_folder.h"

namespace esteira {

enum class TensorVerdict {
  kEqual,   // the same bits
  kValues,  // other bits
  kType,    // the same values as another type
  kShape,
  kOnlyInA,
  kOnlyInB,
};

struct TensorComparison {
  std::string name;
  TensorVerdict verdict = TensorVerdict::kEqual;
  int64_t elements = 0;
  int64_t num_different = 0;  // kValues: elements with other bits
  double max_difference = 0;  // kValues: the largest |a - b|; NaN when one of the two is none
};

// Every tensor of either, by name. fp32 and bf16 only; reads in pieces.
absl::StatusOr<std::vector<TensorComparison>> CompareTensors(const TensorFolder& a,
                                                             const TensorFolder& b);

// Weights and, unless `weights_only`, optimizer state of two models: checkpoints, exports or
// Hugging Face's folders; a directory of checkpoints means its newest. An export holds no state:
// all of the other's is then only in one. Digests are not checked, so that damage can be looked at.
absl::StatusOr<std::vector<TensorComparison>> CompareCheckpoints(FileSystem& files,
                                                                 const std::string& a,
                                                                 const std::string& b,
                                                                 bool weights_only);

}  // namespace esteira
