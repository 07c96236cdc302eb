#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/kernels/cpu/aligned_scratch.h"
#include "worker/kernels/cpu/loops.h"
#include "worker/kernels/cpu/matmul_shape.h"
#include "worker/kernels/cpu/tile_matmul.h"

namespace esteira {

// Matrix products: of bf16 in tiles of our own where the loops have them (tile_matmul.h), otherwise
// by oneDNN, with one primitive for each shape, made at its first use and kept. Where oneDNN has no
// bf16 product for the CPU (older than AVX-512), operands are widened to fp32 block by block: sums
// are then formed in fp32 as well, over blocks of K in order. Thread-safe; one product at a time.
class Matmul {
 public:
  Matmul(const Loops& loops, int threads);

  // On the calling thread and its OpenMP threads.
  absl::Status Run(MatmulShape shape, const MatmulOperands& operands);

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
  const int threads_;
  std::mutex mutex_;
  std::optional<TileMatmul> tiles_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const bool native_bf16_;
  std::map<MatmulShape, Primitive> primitives_;
  AlignedScratch scratchpad_;
  AlignedScratch widened_;
};

}  // namespace esteira
