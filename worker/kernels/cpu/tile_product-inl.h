// A block of a matrix product in AMX tiles, from packed panels, and the way of its sums into the
// result. Sums are formed in fp32 in order of depth, whatever the blocks.
#pragma once

#include "worker/kernels/cpu/tiles-inl.h"

namespace esteira {
namespace {

// Products of a left and a right panel, 32 x 32 sums each, tiles 0 to 3: [row half][column half].
// The left panel is read for every right panel and stays in the first-level cache. The sums of a
// product are stored while the next one begins: a store waits for the last of its instructions, and
// what comes after it would wait as well.
class TileProducts {
 public:
  // sums (+)= left right, of at least one step.
  template <bool kContinue>
  ESTEIRA_INLINE void Multiply(const Bf16* left, const Bf16* right, int64_t steps, float* sums) {
    if (unstored_ == nullptr) {
      FirstStep<kContinue, false>(left, right, sums);
    } else {
      FirstStep<kContinue, true>(left, right, sums);
    }
    unstored_ = sums;
    for (int64_t s = 1; s < steps; ++s) {
      left += kPanelStep;
      right += kPanelStep;
      ESTEIRA_TILE_LOAD(4, left, 64);
      ESTEIRA_TILE_STREAM(6, right, 64);
      ESTEIRA_TILE_MULTIPLY(0, 4, 6);
      ESTEIRA_TILE_STREAM(7, right + kTileElements, 64);
      ESTEIRA_TILE_MULTIPLY(1, 4, 7);
      ESTEIRA_TILE_LOAD(5, left + kTileElements, 64);
      ESTEIRA_TILE_MULTIPLY(2, 5, 6);
      ESTEIRA_TILE_MULTIPLY(3, 5, 7);
    }
  }

  // Before the sums of the last product are read.
  ESTEIRA_INLINE void Store() {
    if (unstored_ == nullptr) return;
    ESTEIRA_TILE_STORE(0, unstored_, 64);
    ESTEIRA_TILE_STORE(1, unstored_ + kSumElements, 64);
    ESTEIRA_TILE_STORE(2, unstored_ + 2 * kSumElements, 64);
    ESTEIRA_TILE_STORE(3, unstored_ + 3 * kSumElements, 64);
    unstored_ = nullptr;
  }

 private:
#define ESTEIRA_NEXT_SUMS(tile)                                                          \
  do {                                                                                   \
    if constexpr (kStore) ESTEIRA_TILE_STORE(tile, unstored_ + (tile)*kSumElements, 64); \
    if constexpr (kContinue) {                                                           \
      ESTEIRA_TILE_LOAD(tile, sums + (tile)*kSumElements, 64);                           \
    } else {                                                                             \
      ESTEIRA_TILE_ZERO(tile);                                                           \
    }                                                                                    \
  } while (false)

  template <bool kContinue, bool kStore>
  ESTEIRA_INLINE void FirstStep(const Bf16* left, const Bf16* right, float* sums) {
    ESTEIRA_TILE_LOAD(4, left, 64);
    ESTEIRA_TILE_STREAM(6, right, 64);
    ESTEIRA_NEXT_SUMS(0);
    ESTEIRA_TILE_MULTIPLY(0, 4, 6);
    ESTEIRA_TILE_STREAM(7, right + kTileElements, 64);
    ESTEIRA_NEXT_SUMS(1);
    ESTEIRA_TILE_MULTIPLY(1, 4, 7);
    ESTEIRA_TILE_LOAD(5, left + kTileElements, 64);
    ESTEIRA_NEXT_SUMS(2);
    ESTEIRA_TILE_MULTIPLY(2, 5, 6);
    ESTEIRA_NEXT_SUMS(3);
    ESTEIRA_TILE_MULTIPLY(3, 5, 7);
  }
#undef ESTEIRA_NEXT_SUMS

  float* unstored_ = nullptr;
};

// One product.
template <bool kContinue>
ESTEIRA_INLINE void MultiplyPanels(const Bf16* left, const Bf16* right, int64_t steps,
                                   float* sums) {
  TileProducts product;
  product.Multiply<kContinue>(left, right, steps, sums);
  product.Store();
}

ESTEIRA_INLINE void FinishGroup(const PanelResult& result, V low, V high, int64_t element,
                                __mmask32 mask) {
  const auto low_mask = static_cast<__mmask16>(mask);
  const auto high_mask = static_cast<__mmask16>(mask >> 16);
  if (result.narrow != nullptr) {
    _mm512_mask_storeu_epi16(result.narrow + element, mask,
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    return;
  }
  float* const out = result.wide + element;
  if (result.past_caches && mask == ~__mmask32{0}) {
    _mm512_stream_ps(out, low);
    _mm512_stream_ps(out + kTileRows, high);
    return;
  }
  if (result.accumulate) {
    low += _mm512_maskz_loadu_ps(low_mask, out);
    high += _mm512_maskz_loadu_ps(high_mask, out + 16);
  }
  _mm512_mask_storeu_ps(out, low_mask, low);
  _mm512_mask_storeu_ps(out + 16, high_mask, high);
}

// The sums of a pair of panels, at (row, column) of the result.
ESTEIRA_INLINE void FinishPanels(const PanelResult& result, int64_t row, int64_t column,
                                 const float* sums) {
  const __mmask32 mask = MaskOf(result.columns - column);
  V low_bias{};
  V high_bias{};
  if (result.bias != nullptr) {
    alignas(64) Bf16 bias[kLinesOfPanel];
    _mm512_store_si512(bias, LoadMasked(result.bias + column, mask));
    low_bias = Load(bias);
    high_bias = Load(bias + kTileRows);
  }
  const int64_t rows = result.rows - row < kLinesOfPanel ? result.rows - row : kLinesOfPanel;
  for (int64_t r = 0; r < rows; ++r) {
    const float* at = sums + r / kTileRows * 2 * kSumElements + r % kTileRows * kTileRows;
    FinishGroup(result, Load(at) * result.scale + low_bias,
                Load(at + kSumElements) * result.scale + high_bias,
                (row + r) * result.stride + column, mask);
  }
}

// The lines of bf16 that a pair of panels will go to are fetched while its sums are formed.
ESTEIRA_INLINE void AskForResult(const PanelResult& result, int64_t row, int64_t column) {
  if (result.narrow == nullptr) return;
  const int64_t rows = result.rows - row < kLinesOfPanel ? result.rows - row : kLinesOfPanel;
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(result.narrow + (row + r) * result.stride + column);
  }
}

// A pair of panels is finished when the next product has stored its sums; these are read before the
// product after that stores the next.
void MultiplyBlock(const PanelBlock& block) {
  const TileScope tiles;
  TileProducts products;
  const Bf16* left = block.left;
  float* sums = block.sums;
  const float* before = nullptr;
  int64_t row_before = 0;
  int64_t column_before = 0;
  for (int64_t row = 0; row < block.result.rows; row += kLinesOfPanel, left += block.left_panel) {
    const Bf16* right = block.right;
    for (int64_t column = 0; column < block.result.columns; column += kLinesOfPanel) {
      if (block.last) AskForResult(block.result, row, column);
      if (block.first) {
        products.Multiply<false>(left, right, block.steps, sums);
      } else {
        products.Multiply<true>(left, right, block.steps, sums);
      }
      if (block.last && before != nullptr) {
        FinishPanels(block.result, row_before, column_before, before);
      }
      before = sums;
      row_before = row;
      column_before = column;
      right += block.steps * kPanelStep;
      if (!block.first || !block.last) sums += kPanelSums;
    }
  }
  products.Store();
  if (block.last) FinishPanels(block.result, row_before, column_before, before);
  if (block.result.past_caches) _mm_sfence();
}

}  // namespace
}  // namespace esteira
