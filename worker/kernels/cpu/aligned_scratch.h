#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace esteira {

// Memory that grows to the largest size asked for and stays: after the first step there is no
// allocation. Aligned to 64 bytes; from 2 MiB on it asks for huge pages. Not thread-safe.
class AlignedScratch {
 public:
  absl::Status Reserve(int64_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    const int64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kLineBytes;
    const int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded))));
    bytes_ = data_ == nullptr ? 0 : rounded;
    // Only advice.
    if (bytes_ >= kHugePageBytes) madvise(data_.get(), static_cast<size_t>(bytes_), MADV_HUGEPAGE);
    if (data_ != nullptr) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", rounded, " bytes of scratch for a CPU kernel"));
  }
  std::byte* data() const { return data_.get(); }

 private:
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace esteira
