#include "worker/communication/group_arguments.h"

#include "absl/strings/str_cat.h"

namespace esteira {

absl::Status GroupArguments::Pieces(size_t elements) const {
  if (elements % static_cast<size_t>(size_) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(elements, " elements are not ", size_, " equal pieces"));
}

absl::Status GroupArguments::Sums(const Bf16Reduction& reduction) const {
  const size_t piece = reduction.contribution.size() / static_cast<size_t>(size_);
  if (reduction.sums.size() == piece) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(reduction.sums.size(), " sums for a piece of ", piece, " elements"));
}

absl::Status GroupArguments::Root(int root) const {
  if (root >= 0 && root < size_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("root ", root, " of ", size_, " members"));
}

absl::Status GroupArguments::Scratch(size_t bytes, size_t alignment,
                                     std::span<std::byte> scratch) const {
  const int64_t needed = ScratchBytes(static_cast<int64_t>(bytes));
  const bool aligned = reinterpret_cast<uintptr_t>(scratch.data()) % alignment == 0;
  if (std::ssize(scratch) >= needed && aligned) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("scratch of ", scratch.size(), " bytes; ", needed,
                                                 " aligned to an element are needed"));
}

}  // namespace esteira
