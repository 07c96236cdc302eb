#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace esteira {

// Memory that grows to the largest size asked for and stays: after the first step there is no
// allocation. Aligned to 64 bytes. Not thread-safe.
class AlignedScratch {
 public:
  absl::Status Reserve(int64_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    const int64_t rounded = (bytes + 63) / 64 * 64;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(rounded))));
    bytes_ = data_ == nullptr ? 0 : rounded;
    if (data_ != nullptr) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", rounded, " bytes of scratch for a CPU kernel"));
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace esteira
