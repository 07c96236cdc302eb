#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/sizes.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/kernels/cpu/aligned_scratch.h"
#include "worker/kernels/cpu/loops.h"

namespace esteira {

// C[M,N] = A[M,K] B[K,N] (+ bias[N]), or C += A B. A transposed operand lies in memory as [K,M] or
// [N,K].
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
  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 that the compiler compares with is no pointer.
  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulOperands {
  std::byte* a = nullptr;
  std::byte* b = nullptr;
  std::byte* bias = nullptr;
  std::byte* c = nullptr;
};

// Matrix products by oneDNN, with one primitive for each shape, made at its first use and kept.
// Where oneDNN has no bf16 product for the CPU (older than AVX-512), operands are widened to fp32
// block by block: sums are then formed in fp32 as well, over blocks of K in order. Thread-safe; one
// product at a time.
class Matmul {
 public:
  explicit Matmul(const Loops& loops);

  // On the calling thread and its OpenMP threads.
  absl::Status Run(const MatmulShape& shape, const MatmulOperands& operands);

 private:
  struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory a, b, bias, c, scratchpad;
    int64_t scratchpad_bytes = 0;
  };

  absl::StatusOr<Primitive*> PrimitiveFor(const MatmulShape& shape);
  Primitive Make(const MatmulShape& shape) const;
  absl::Status Execute(const MatmulShape& shape, const MatmulOperands& operands);
  absl::Status RunWidened(const MatmulShape& shape, const MatmulOperands& operands);
  absl::Status WidenedBlock(const MatmulShape& shape, const MatmulOperands& operands, int64_t m,
                            int64_t n);

  const Loops& loops_;
  std::mutex mutex_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const bool native_bf16_;
  std::map<MatmulShape, Primitive> primitives_;
  AlignedScratch scratchpad_;
  AlignedScratch widened_;
};

}  // namespace esteira
