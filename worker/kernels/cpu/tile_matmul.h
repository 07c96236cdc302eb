#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/kernels/cpu/aligned_scratch.h"
#include "worker/kernels/cpu/loops.h"
#include "worker/kernels/cpu/matmul_shape.h"

namespace esteira {

// Products of bf16 matrices in AMX tiles, sums in fp32 in order of depth: the bits of an element of
// C depend on its row of A and its column of B, not on shapes or the number of threads. Operands
// are packed for each call, A by all threads together, B by the thread that multiplies it. Owns the
// packed panels and sums, which grow to the largest that a call needs and stay. Not thread-safe.
class TileMatmul {
 public:
  TileMatmul(const TileLoops& loops, int threads) : loops_(loops), threads_(threads) {}

  // On the calling thread and its OpenMP threads. shape.type is bf16.
  absl::Status Run(const MatmulShape& shape, const MatmulOperands& operands);

 private:
  struct Part;     // rows and depth that are packed at once
  struct Columns;  // of B, which one thread packs at once

  absl::Status Reserve(const MatmulShape& shape);
  void PackLeft(const MatmulShape& shape, const MatmulOperands& operands, const Part& part);
  void MultiplyColumns(const MatmulShape& shape, const MatmulOperands& operands, const Part& part,
                       int64_t block, int thread);
  void PackRight(const MatmulShape& shape, const MatmulOperands& operands, const Part& part,
                 const Columns& columns, Bf16* right) const;
  PanelResult ResultOf(const MatmulShape& shape, const MatmulOperands& operands, const Part& part,
                       int64_t row, int64_t column) const;
  int64_t columns_of_block() const { return panels_of_block_ * kLinesOfPanel; }

  const TileLoops& loops_;
  const int threads_;
  int64_t panels_of_block_ = 0;  // of columns, for the shape at hand
  int64_t right_of_thread_ = 0;
  int64_t sums_of_block_ = 0;
  AlignedScratch left_;
  AlignedScratch right_;  // one block a thread
  AlignedScratch sums_;   // of 256 rows a thread; when depth comes in parts, of all blocks
};

}  // namespace esteira
