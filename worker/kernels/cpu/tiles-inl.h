// AMX tiles of 16 rows by 64 bytes, and how matrices of bf16 become tiles.
//
// Included only by loops_amx.cc. A left operand lies as panels of 32 rows, a right operand as
// panels of 32 columns; a panel is a run of steps of 32 in depth, each of two tiles: rows 0-15 and
// 16-31 with their 32 elements, or columns 0-15 and 16-31 with pairs of depth side by side. Beyond
// the matrix a panel is zero. GCC's intrinsics of tiles do not tell the compiler that they read
// memory; these do.
#pragma once

#include <immintrin.h>

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileElements = 512;  // of bf16
constexpr int64_t kSumElements = 256;   // of fp32, in a tile of sums

#define ESTEIRA_TILE_LOAD(tile, address, stride)                                            \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(static_cast<const void*>(address)), \
               "r"(static_cast<int64_t>(stride))                                            \
               : "memory")
// The same for what is read once: it stays out of the way of what is read again.
#define ESTEIRA_TILE_STREAM(tile, address, stride)                                            \
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(static_cast<const void*>(address)), \
               "r"(static_cast<int64_t>(stride))                                              \
               : "memory")
#define ESTEIRA_TILE_STORE(tile, address, stride)                                         \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(static_cast<void*>(address)), \
               "r"(static_cast<int64_t>(stride))                                          \
               : "memory")
#define ESTEIRA_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
// sums += left right, in order of depth.
#define ESTEIRA_TILE_MULTIPLY(sums, left, right) \
  asm volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sums ::)

struct TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Eight whole tiles, for as long as this lives.
class TileScope {
 public:
  TileScope() {
    alignas(64) TileConfiguration configuration;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = 64;
      configuration.rows[i] = static_cast<uint8_t>(kTileRows);
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() { asm volatile("tilerelease" ::: "memory"); }
};

// The first `count` of 32 elements.
ESTEIRA_INLINE __mmask32 MaskOf(int64_t count) {
  if (count >= kDepthOfStep) return ~__mmask32{0};
  return count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}

ESTEIRA_INLINE __m512i LoadMasked(const Bf16* p, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, p);
}

// Rows to columns, of 16 x 16 elements of 32 bits.
ESTEIRA_INLINE void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
  }
}

// Of two rows of 32, elements 0-15 (kHalf 0) or 16-31 side by side: a0 b0 a1 b1 ...
template <int kHalf>
ESTEIRA_INLINE __m512i Interleave(__m512i a, __m512i b) {
  alignas(64) static constexpr uint16_t kOrder[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder[kHalf]), b);
}

// Both tiles of one step of a panel whose lines (rows of a left operand, columns of a right one)
// lie across memory: element (k, line) at data[k * stride + line].
template <bool kRight>
ESTEIRA_INLINE void PackStepAcross(const Bf16* data, int64_t stride, int64_t lines, int64_t depth,
                                   Bf16* out) {
  const __mmask32 mask = MaskOf(lines);
  __m512i low[16], high[16];
#pragma GCC unroll 16
  for (int64_t pair = 0; pair < 16; ++pair) {
    const int64_t k = 2 * pair;
    // The step after this one.
    __builtin_prefetch(data + (k + kDepthOfStep) * stride);
    __builtin_prefetch(data + (k + 1 + kDepthOfStep) * stride);
    const __m512i even = LoadMasked(data + k * stride, k < depth ? mask : 0);
    const __m512i odd = LoadMasked(data + (k + 1) * stride, k + 1 < depth ? mask : 0);
    low[pair] = Interleave<0>(even, odd);
    high[pair] = Interleave<1>(even, odd);
    if constexpr (kRight) {
      _mm512_store_si512(out + pair * 32, low[pair]);
      _mm512_store_si512(out + kTileElements + pair * 32, high[pair]);
    }
  }
  if constexpr (!kRight) {
    Transpose(low);
    for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, low[i]);
    Transpose(high);
    for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(out + kTileElements + i * 32, high[i]);
  }
}

// One tile of a right operand whose columns lie along memory: element (k, column) at
// data[column * stride + k].
ESTEIRA_INLINE void PackRightTileAlong(const Bf16* data, int64_t stride, int64_t columns,
                                       int64_t depth, Bf16* out) {
  const __mmask32 mask = MaskOf(depth);
  __m512i r[16];
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) {
    __builtin_prefetch(data + (i + kTileRows) * stride);  // the tile beside this one
    r[i] = LoadMasked(data + i * stride, i < columns ? mask : 0);
  }
  Transpose(r);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, r[i]);
}

// A panel of a left operand whose rows lie along memory.
void PackLeftAlong(const Bf16* data, int64_t stride, int64_t rows, int64_t depth, Bf16* out) {
  const int64_t steps = StepsOf(depth);
  for (int64_t r = 0; r < kLinesOfPanel; ++r) {
    Bf16* const to = out + r * 32;
    for (int64_t s = 0; s < steps; ++s) {
      const __mmask32 mask = r < rows ? MaskOf(depth - s * kDepthOfStep) : 0;
      __builtin_prefetch(data + (r + 1) * stride + s * kDepthOfStep);
      _mm512_store_si512(to + s * kPanelStep,
                         LoadMasked(data + r * stride + s * kDepthOfStep, mask));
    }
  }
}

void PackRightAlong(const Bf16* data, int64_t stride, int64_t columns, int64_t depth, Bf16* out) {
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = half * kTileRows;
    for (int64_t s = 0; s < StepsOf(depth); ++s) {
      PackRightTileAlong(data + first * stride + s * kDepthOfStep, stride, columns - first,
                         depth - s * kDepthOfStep, out + s * kPanelStep + half * kTileElements);
    }
  }
}

// Where lines lie across memory, a step of all panels comes before the next step: it reads whole
// rows.
void PackLeft(const StoredMatrix& a, int64_t rows, int64_t depth, Bf16* out) {
  const int64_t steps = StepsOf(depth);
  const int64_t panel = steps * kPanelStep;
  if (!a.transposed) {
    for (int64_t r = 0; r < rows; r += kLinesOfPanel, out += panel) {
      PackLeftAlong(a.data + r * a.stride, a.stride, rows - r, depth, out);
    }
    return;
  }
  for (int64_t s = 0; s < steps; ++s) {
    const Bf16* const lines = a.data + s * kDepthOfStep * a.stride;
    for (int64_t r = 0; r < rows; r += kLinesOfPanel) {
      PackStepAcross<false>(lines + r, a.stride, rows - r, depth - s * kDepthOfStep,
                            out + r / kLinesOfPanel * panel + s * kPanelStep);
    }
  }
}

void PackRight(const StoredMatrix& b, int64_t depth, int64_t columns, Bf16* out) {
  const int64_t steps = StepsOf(depth);
  const int64_t panel = steps * kPanelStep;
  if (b.transposed) {
    for (int64_t c = 0; c < columns; c += kLinesOfPanel, out += panel) {
      PackRightAlong(b.data + c * b.stride, b.stride, columns - c, depth, out);
    }
    return;
  }
  for (int64_t s = 0; s < steps; ++s) {
    const Bf16* const rows = b.data + s * kDepthOfStep * b.stride;
    for (int64_t c = 0; c < columns; c += kLinesOfPanel) {
      PackStepAcross<true>(rows + c, b.stride, columns - c, depth - s * kDepthOfStep,
                           out + c / kLinesOfPanel * panel + s * kPanelStep);
    }
  }
}

}  // namespace
}  // namespace esteira
