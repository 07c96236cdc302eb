#include "common/checkpoint/tensor_file.h"

#include <bit>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // stays a NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

TensorFile::TensorFile(FileSystem& files, const std::string& folder, std::string name,
                       const std::vector<TensorEntry>& tensors)
    : name_(std::move(name)) {
  const std::string header = SafetensorsHeader(tensors);
  expected_bytes_ =
      static_cast<int64_t>(header.size()) + (tensors.empty() ? 0 : tensors.back().end);
  absl::StatusOr<std::unique_ptr<WritableFile>> file = files.Create(folder + "/" + name_);
  status_ = file.status();
  if (file.ok()) file_ = *std::move(file);
  AppendBytes(header);
}

void TensorFile::Append(std::span<const float> values, ElementType type) {
  if (!status_.ok()) return;
  if (type == ElementType::kFp32) {
    AppendBytes({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    return;
  }
  std::vector<uint16_t> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) rounded[i] = ToBf16(values[i]);
  AppendBytes({reinterpret_cast<const char*>(rounded.data()), rounded.size() * sizeof(uint16_t)});
}

absl::StatusOr<ManifestFile> TensorFile::Finish() {
  if (status_.ok()) status_ = file_->Close();
  RETURN_IF_ERROR(status_);
  CHECK(bytes_ == expected_bytes_);
  return ManifestFile{name_, bytes_, digest_.Finish()};
}

void TensorFile::AppendBytes(absl::string_view bytes) {
  if (!status_.ok()) return;
  status_ = file_->Append(bytes);
  digest_.Append(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
}

}  // namespace esteira
