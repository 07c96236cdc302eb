#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "common/plan/sizes.h"

namespace esteira {

// C[M,N] = A[M,K] B[K,N] (+ bias[N]), or C += A B, or, from zero, the same bits as C += A B on
// zeros. A transposed operand lies in memory as [K,M] or [N,K].
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ElementType type = ElementType::kFp32;      // of A, B and bias
  ElementType out_type = ElementType::kFp32;  // of C
  bool a_transposed = false;
  bool b_transposed = false;
  bool bias = false;
  bool accumulate = false;
  bool from_zero = false;  // only with accumulate
  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 that the compiler compares with is no pointer.
  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulOperands {
  std::byte* a = nullptr;
  std::byte* b = nullptr;
  std::byte* bias = nullptr;
  std::byte* c = nullptr;
};

}  // namespace esteira
