// What this machine can do, measured now: the limits that step_limit compares a training step with.
// Times are processor time of the thread that a stream runs its work on, so that other programs on
// the machine do not count. With several threads it does a part of the work only, and a time is a
// lower bound.
#pragma once

#include <cstdint>

#include "worker/kernels/kernels.h"

namespace esteira {

double ThreadSeconds();

// Bytes read and written by a second of copying much more than the caches hold.
double CopyBandwidth(int threads);

// Operations of a second of bf16 tile products that touch no memory, on `threads` threads at once;
// 0 when the machine has no tiles.
double TilePeak(int threads);

enum class ProductPass { kForward, kInputGradient, kWeightGradient };

// A bf16 product with weights, y[rows, out] = x[rows, in] w, or one of its gradients.
struct ProductShape {
  ProductPass pass = ProductPass::kForward;
  WeightLayout layout = WeightLayout::kInOut;
  int64_t rows = 0, in = 0, out = 0;
};

// Seconds of one product, the shortest of several runs in turns.
struct ProductTimes {
  double ours = 0;
  double row_major = 0;  // oneDNN, operands as they lie in memory
  double packed = 0;     // oneDNN, weights (or the second operand) in the layout that it chooses
  double best() const;
};
ProductTimes MeasureProduct(const ProductShape& shape, int threads);

}  // namespace esteira
