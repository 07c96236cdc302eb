// The matrix product that attention is made of: C[r, c] (+)= sum over k of a(r, k) B[k, c], with c
// in lanes and `a` read through any two strides, so that transposed operands need no copy.
#pragma once

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

struct TileGemmShape {
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of kLanes
  int64_t depth = 0;
};

struct LeftOperand {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t depth_stride = 0;
};

// Rows and vectors of one register block; accumulators fill half of the registers or more.
constexpr int kBlockRows = 4;
#if defined(__AVX512F__)
constexpr int kBlockVectors = 4;
#else
constexpr int kBlockVectors = 2;
#endif

template <int kRows, int kVectors, bool kAdd>
ESTEIRA_INLINE void GemmBlock(int64_t depth, LeftOperand a, RowsOf<const float> b,
                              RowsOf<float> c) {
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = kAdd ? Load(c.row(r) + v * kLanes) : V{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    V b_k[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b_k[v] = Load(b.row(k) + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V a_rk = Splat(a.data[r * a.row_stride + k * a.depth_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += a_rk * b_k[v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(c.row(r) + v * kLanes, sum[r][v]);
  }
}

template <int kVectors, bool kAdd>
void GemmColumns(const TileGemmShape& shape, LeftOperand a, RowsOf<const float> b,
                 RowsOf<float> c) {
  int64_t r = 0;
  const auto rows_from = [&](int64_t row) {
    return LeftOperand{a.data + row * a.row_stride, a.row_stride, a.depth_stride};
  };
  for (; r + kBlockRows <= shape.rows; r += kBlockRows) {
    GemmBlock<kBlockRows, kVectors, kAdd>(shape.depth, rows_from(r), b, {c.row(r), c.stride});
  }
  for (; r < shape.rows; ++r) {
    GemmBlock<1, kVectors, kAdd>(shape.depth, rows_from(r), b, {c.row(r), c.stride});
  }
}

template <bool kAdd>
void TileGemm(const TileGemmShape& shape, LeftOperand a, RowsOf<const float> b, RowsOf<float> c) {
  int64_t column = 0;
  for (; column + kBlockVectors * kLanes <= shape.columns; column += kBlockVectors * kLanes) {
    GemmColumns<kBlockVectors, kAdd>(shape, a, {b.data + column, b.stride},
                                     {c.data + column, c.stride});
  }
  for (; column < shape.columns; column += kLanes) {
    GemmColumns<1, kAdd>(shape, a, {b.data + column, b.stride}, {c.data + column, c.stride});
  }
}

}  // namespace
}  // namespace esteira
