// The safetensors format: eight bytes of header size (little-endian), a JSON header, then the
// tensors' bytes without gaps (https://github.com/huggingface/safetensors, "Format"). Only headers
// are handled here; whoever reads or writes tensors streams them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/sizes.h"

namespace esteira {

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kFp32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
  int64_t elements() const { return (end - begin) / BytesOf(type); }
  bool operator==(const TensorEntry&) const = default;
};

// Lays out `tensors` one after the other: sets begin and end from type and shape.
void PlaceTensors(std::vector<TensorEntry>& tensors);

// The file's beginning up to the first tensor byte; a multiple of 8 bytes.
std::string SafetensorsHeader(const std::vector<TensorEntry>& placed);

struct SafetensorsFile {
  int64_t data_offset = 0;           // of the first tensor byte in the file
  std::vector<TensorEntry> tensors;  // by begin
};

inline constexpr int64_t kSafetensorsPrefixBytes = 8;
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

// The header's size from the first eight bytes. DataLoss when it cannot be one in a file of
// `file_bytes`.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view prefix, int64_t file_bytes);

// Reads the JSON header (without the first eight bytes). Trusts nothing: types must be known, sizes
// must equal type times shape without overflow, and tensors must cover the rest of the file once,
// without holes or overlaps. DataLoss names the tensor.
absl::StatusOr<SafetensorsFile> ParseSafetensorsHeader(absl::string_view header,
                                                       int64_t file_bytes);

}  // namespace esteira
