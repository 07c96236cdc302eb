#include "worker/kernels/cpu/tile_matmul.h"

#include <omp.h>

#include <algorithm>

#include "common/base/status_macros.h"

// Legend: C[M,N] = A[M,K] B[K,N]; a panel is 32 rows of A or columns of B, a step 32 of depth.

namespace esteira {
namespace {

// A is packed in parts of at most 1024 rows by 1024 of depth, 2 MiB, so that it is near when it is
// read for each block of columns; by 4096 where the sums of all columns, which go to memory and
// back with each part, would be further away than that. A thread multiplies 256 rows of it with at
// most 8 panels of B over at most 16 steps: 256 KiB each, and as much of sums, stay in the
// second-level cache; a panel of 16 steps, 32 KiB, stays in the first.
constexpr int64_t kRowsAtOnce = 1024;
constexpr int64_t kRowsOfBlock = 256;
constexpr int64_t kStepsAtOnce = 32;
constexpr int64_t kStepsOfManyColumns = 128;
constexpr int64_t kManyColumns = 1024;
constexpr int64_t kPanelsOfBlock = 8;
constexpr int64_t kFewestPanels = 4;
constexpr int64_t kPanelsPackedAtOnce = 4;  // of A
constexpr int64_t kStepsOfSlice = 16;

constexpr auto kBytesOfBf16 = static_cast<int64_t>(sizeof(Bf16));

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t StepsAtOnce(const MatmulShape& shape) {
  return shape.n > kManyColumns ? kStepsOfManyColumns : kStepsAtOnce;
}

// Panels of a block that give all threads equal work; reading A again for each block costs as much
// as a third of a panel.
int64_t PanelsOfBlock(int64_t panels, int threads) {
  int64_t best = kPanelsOfBlock;
  double least = 0;
  for (int64_t size = kPanelsOfBlock; size >= kFewestPanels; --size) {
    const int64_t rounds = Quotient(Quotient(panels, size), threads);
    const double cost = static_cast<double>(rounds) * (static_cast<double>(size) + 1.0 / 3);
    if (size < kPanelsOfBlock && cost >= least) continue;
    best = size;
    least = cost;
  }
  return best;
}

// A gradient larger than the second-level cache is out of it before it is read again; so its lines
// need not be read to be written.
bool GoesPastCaches(const MatmulShape& shape, const std::byte* c) {
  constexpr int64_t kFewestBytes = int64_t{2} << 20;
  constexpr int64_t kLineBytes = 64;
  const int64_t row_bytes = shape.n * static_cast<int64_t>(sizeof(float));
  return shape.from_zero && row_bytes * shape.m >= kFewestBytes && row_bytes % kLineBytes == 0 &&
         reinterpret_cast<uintptr_t>(c) % kLineBytes == 0;
}

const Bf16* ElementOf(const std::byte* matrix, int64_t row, int64_t column, int64_t stride,
                      bool transposed) {
  const int64_t at = transposed ? column * stride + row : row * stride + column;
  return reinterpret_cast<const Bf16*>(matrix) + at;
}

float* AsFloats(const AlignedScratch& scratch) { return reinterpret_cast<float*>(scratch.data()); }
Bf16* AsBf16(const AlignedScratch& scratch) { return reinterpret_cast<Bf16*>(scratch.data()); }

}  // namespace

// Of C, and how its depth is sliced.
struct TileMatmul::Columns {
  int64_t first = 0;
  int64_t count = 0;
  int64_t steps_of_slice = 0;
};

struct TileMatmul::Part {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t step = 0;
  int64_t steps = 0;
  bool first = false;  // of depth
  bool last = false;

  int64_t depth(const MatmulShape& shape) const {
    return std::min(steps * kDepthOfStep, shape.k - step * kDepthOfStep);
  }
};

absl::Status TileMatmul::Run(const MatmulShape& shape, const MatmulOperands& operands) {
  RETURN_IF_ERROR(Reserve(shape));
  const int64_t steps = StepsOf(shape.k);
  const int64_t steps_at_once = StepsAtOnce(shape);
  const int64_t blocks = Quotient(PanelsOf(shape.n), panels_of_block_);
  for (int64_t row = 0; row < shape.m; row += kRowsAtOnce) {
    for (int64_t step = 0; step < steps; step += steps_at_once) {
      const Part part = {.row = row,
                         .rows = std::min(kRowsAtOnce, shape.m - row),
                         .step = step,
                         .steps = std::min(steps_at_once, steps - step),
                         .first = step == 0,
                         .last = step + steps_at_once >= steps};
      PackLeft(shape, operands, part);
      // Which thread takes a block changes no bit.
#pragma omp parallel for num_threads(threads_) schedule(dynamic, 1)
      for (int64_t block = 0; block < blocks; ++block) {
        MultiplyColumns(shape, operands, part, block, omp_get_thread_num());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status TileMatmul::Reserve(const MatmulShape& shape) {
  const int64_t steps = StepsOf(shape.k);
  const int64_t panels = PanelsOf(shape.n);
  const int64_t row_panels = PanelsOf(std::min(kRowsAtOnce, shape.m));
  panels_of_block_ = PanelsOfBlock(panels, threads_);
  const int64_t steps_of_part = std::min(StepsAtOnce(shape), steps);
  right_of_thread_ = panels_of_block_ * steps_of_part * kPanelStep;
  // When depth comes in parts, the sums of all blocks wait for the next part.
  const bool depth_in_parts = steps > steps_of_part;
  const int64_t rows_of_sums =
      depth_in_parts ? row_panels : std::min(PanelsOf(kRowsOfBlock), row_panels);
  sums_of_block_ = rows_of_sums * panels_of_block_ * kPanelSums;
  const int64_t blocks_of_sums = depth_in_parts ? Quotient(panels, panels_of_block_) : threads_;
  RETURN_IF_ERROR(left_.Reserve(row_panels * steps_of_part * kPanelStep * kBytesOfBf16));
  RETURN_IF_ERROR(right_.Reserve(threads_ * right_of_thread_ * kBytesOfBf16));
  return sums_.Reserve(blocks_of_sums * sums_of_block_ * static_cast<int64_t>(sizeof(float)));
}

void TileMatmul::PackLeft(const MatmulShape& shape, const MatmulOperands& operands,
                          const Part& part) {
  const int64_t stride = shape.a_transposed ? shape.m : shape.k;
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (int64_t panel = 0; panel < PanelsOf(part.rows); panel += kPanelsPackedAtOnce) {
    const int64_t row = panel * kLinesOfPanel;
    const StoredMatrix a = {
        ElementOf(operands.a, part.row + row, part.step * kDepthOfStep, stride, shape.a_transposed),
        stride, shape.a_transposed};
    loops_.pack_left(a, std::min(kPanelsPackedAtOnce * kLinesOfPanel, part.rows - row),
                     part.depth(shape), AsBf16(left_) + panel * part.steps * kPanelStep);
  }
}

void TileMatmul::MultiplyColumns(const MatmulShape& shape, const MatmulOperands& operands,
                                 const Part& part, int64_t block, int thread) {
  const int64_t column = block * columns_of_block();
  const int64_t columns = std::min(columns_of_block(), shape.n - column);
  Bf16* const right = AsBf16(right_) + thread * right_of_thread_;
  const int64_t steps_of_slice = Quotient(part.steps, Quotient(part.steps, kStepsOfSlice));
  PackRight(shape, operands, part, {column, columns, steps_of_slice}, right);
  const bool depth_in_parts = !part.first || !part.last;
  float* const all_sums = AsFloats(sums_) + (depth_in_parts ? block : thread) * sums_of_block_;
  for (int64_t row = 0; row < part.rows; row += kRowsOfBlock) {
    float* const sums = all_sums + (depth_in_parts ? row * columns_of_block() : 0);
    for (int64_t step = 0; step < part.steps; step += steps_of_slice) {
      loops_.multiply(
          {.left = AsBf16(left_) + (row * part.steps + step * kLinesOfPanel) * kDepthOfStep,
           .left_panel = part.steps * kPanelStep,
           .right = right + step * PanelsOf(columns) * kPanelStep,
           .steps = std::min(steps_of_slice, part.steps - step),
           .first = part.first && step == 0,
           .last = part.last && step + steps_of_slice >= part.steps,
           .sums = sums,
           .result = ResultOf(shape, operands, part, row, column)});
    }
  }
}

// Slice by slice of depth, all columns of one before the next.
void TileMatmul::PackRight(const MatmulShape& shape, const MatmulOperands& operands,
                           const Part& part, const Columns& columns, Bf16* right) const {
  const int64_t stride = shape.b_transposed ? shape.k : shape.n;
  for (int64_t step = 0; step < part.steps; step += columns.steps_of_slice) {
    const int64_t steps = std::min(columns.steps_of_slice, part.steps - step);
    const int64_t first = (part.step + step) * kDepthOfStep;
    const StoredMatrix b = {ElementOf(operands.b, first, columns.first, stride, shape.b_transposed),
                            stride, shape.b_transposed};
    loops_.pack_right(b, std::min(steps * kDepthOfStep, shape.k - first), columns.count, right);
    right += steps * PanelsOf(columns.count) * kPanelStep;
  }
}

PanelResult TileMatmul::ResultOf(const MatmulShape& shape, const MatmulOperands& operands,
                                 const Part& part, int64_t row, int64_t column) const {
  const int64_t first = (part.row + row) * shape.n + column;
  const bool narrow = shape.out_type == ElementType::kBf16;
  return {.rows = std::min(kRowsOfBlock, part.rows - row),
          .columns = std::min(columns_of_block(), shape.n - column),
          .bias = shape.bias ? reinterpret_cast<const Bf16*>(operands.bias) + column : nullptr,
          .narrow = narrow ? reinterpret_cast<Bf16*>(operands.c) + first : nullptr,
          .wide = narrow ? nullptr : reinterpret_cast<float*>(operands.c) + first,
          .stride = shape.n,
          .accumulate = shape.accumulate && !shape.from_zero,
          .past_caches = GoesPastCaches(shape, operands.c)};
}

}  // namespace esteira
