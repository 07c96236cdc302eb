#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

namespace esteira {

// Writes one safetensors file from its first byte to its last and forms its digest on the way. The
// first failure sticks, later calls do nothing and Finish reports it: whoever feeds the file need
// not stop half-way. Not thread-safe.
class TensorFile {
 public:
  // `tensors`: placed, of fp32 or bf16; their values are appended in this order.
  TensorFile(FileSystem& files, const std::string& folder, std::string name,
             const std::vector<TensorEntry>& tensors);

  // The next values; stored as `type`, bf16 rounded to nearest even.
  void Append(std::span<const float> values, ElementType type);
  // Makes the file durable.
  absl::StatusOr<ManifestFile> Finish();

 private:
  void AppendBytes(absl::string_view bytes);

  std::string name_;
  std::unique_ptr<WritableFile> file_;
  absl::Status status_;
  Digest digest_;
  int64_t bytes_ = 0;
  int64_t expected_bytes_ = 0;
};

}  // namespace esteira
