#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/communication/collectives.h"

namespace esteira {

// What every implementation of Collectives asks of the arguments of a group of `size`;
// InvalidArgument says what is wrong with them. Internal to the folder.
class GroupArguments {
 public:
  explicit GroupArguments(int size) : size_(size) {}

  int size() const { return size_; }
  int64_t ScratchBytes(int64_t bytes) const { return bytes / size_ * (size_ - 1); }

  absl::Status Pieces(size_t elements) const;
  absl::Status Sums(const Bf16Reduction& reduction) const;
  absl::Status Root(int root) const;
  // For reductions of `elements` in all.
  template <typename Element>
  absl::Status Scratch(size_t elements, std::span<std::byte> scratch) const {
    return Scratch(elements * sizeof(Element), alignof(Element), scratch);
  }
  template <typename Element>
  absl::Status Reduction(std::span<Element> buffer, std::span<std::byte> scratch) const {
    absl::Status status = Pieces(buffer.size());
    status.Update(Scratch<Element>(buffer.size(), scratch));
    return status;
  }

 private:
  absl::Status Scratch(size_t bytes, size_t alignment, std::span<std::byte> scratch) const;

  const int size_;
};

}  // namespace esteira
