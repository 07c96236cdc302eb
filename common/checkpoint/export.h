// Weights of a checkpoint as a folder for other programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/plan/model_spec.h"

namespace esteira {

struct ExportOptions {
  std::optional<Precision> precision;      // absent: that of the checkpoint's weights
  int64_t shard_bytes = int64_t{2} << 30;  // of the tensors in one file; a larger tensor has
                                           // a file of its own
};

struct ExportResult {
  std::string from;  // the folder that was read
  int num_files = 0;
  int64_t bytes = 0;  // of all tensors
};

// Writes the weights of `folder` (a checkpoint, verified first; a directory of them: the newest; an
// export; or Hugging Face's) to `out` as Hugging Face lays a model out: config.json, *.safetensors
// with an index when there are several, the tokenizer's files. fp32 comes from the master weights
// where there are some. Nothing else is kept: neither optimizer state nor manifest. `out` appears
// whole or not at all, and one that holds something is never written into: AlreadyExists.
absl::StatusOr<ExportResult> ExportWeights(FileSystem& files, const std::string& folder,
                                           const std::string& out, const ExportOptions& options);

}  // namespace esteira
