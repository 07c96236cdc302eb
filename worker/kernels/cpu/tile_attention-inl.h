// Causal attention of bf16 in AMX tiles: the algorithm of attention-inl.h. Products take bf16, also
// of probabilities; softmax and all sums are fp32. This file is what its two passes share.
#pragma once

#include "worker/kernels/cpu/attention-inl.h"
#include "worker/kernels/cpu/tile_product-inl.h"

namespace esteira {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;
constexpr float kLowestScore = -1e30f;

// 2^x, relative error below 4e-6 (a minimax polynomial on 0 to 1) and none at integers; 0 far below
// and for minus infinity, NaN for a NaN.
ESTEIRA_INLINE V Exp2(V x) {
  constexpr int kRoundDown = 1;
  const V r = _mm512_reduce_ps(x, kRoundDown);
  V p = Splat(0.01355574711f);
  p = p * r + 0.0520323692f;
  p = p * r + 0.2413797629f;
  p = p * r + 0.6930321208f;
  p = p * r + 1.0f;
  return _mm512_scalef_ps(p, x);
}

// log2(x) of a normal x > 0, error below 1e-7 of it; NaN for a NaN.
ESTEIRA_INLINE V Log2(V x) {
  // x = 2^e (1 + t), t from -1/4 to 1/2.
  const V mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
  const V e = _mm512_getexp_ps(x / mantissa);
  const V t = mantissa - 1.0f;
  V p = Splat(0.07806678555f);
  p = p * t - 0.1742303103f;
  p = p * t + 0.2163249023f;
  p = p * t - 0.2427235175f;
  p = p * t + 0.2881915011f;
  p = p * t - 0.3605759216f;
  p = p * t + 0.4809020806f;
  p = p * t - 0.7213484784f;
  p = p * t + 1.442695032f;
  return p * t + e;
}

constexpr int64_t RoundedToPanel(int64_t lines) { return PanelsOf(lines) * kLinesOfPanel; }

// Matrices one after the other in the scratch of a pair; without scratch it only counts. Lengths in
// fp32; bf16 takes half.
class ScratchParts {
 public:
  explicit ScratchParts(float* scratch) : scratch_(scratch) {}

  void Take(float** to, int64_t elements) {
    *to = scratch_ == nullptr ? nullptr : scratch_ + taken_;
    taken_ += elements;
  }
  void Take(Bf16** to, int64_t elements) {
    float* part;
    Take(&part, elements / 2);
    *to = reinterpret_cast<Bf16*>(part);
  }
  int64_t taken() const { return taken_; }

 private:
  float* scratch_;
  int64_t taken_ = 0;
};

// Of packed operands.
bool AnyNonFinitePacked(const Bf16* x, int64_t n) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += kDepthOfStep) {
    const __m512i magnitude = _mm512_and_si512(_mm512_load_si512(x + i), _mm512_set1_epi16(0x7fff));
    largest = _mm512_max_epu16(largest, magnitude);
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) != 0;
}

// Minus infinity becomes a NaN, so that no non-finite operand vanishes in Exp2.
void PoisonScores(float* scores, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V score = Load(scores + i);
    Store(scores + i, score + Poison(score));
  }
}

// Where a row lies in the sums of a pair of panels.
ESTEIRA_INLINE int64_t RowOfPanels(int64_t row) {
  return row / kTileRows * 2 * kSumElements + row % kTileRows * kTileRows;
}

// The sums of the lanes of 16 vectors, in one.
ESTEIRA_INLINE V SumsOfLanes(const float* vectors) {
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = reinterpret_cast<__m512i>(Load(vectors + i * kLanes));
  Transpose(r);
  V t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) t[i] = reinterpret_cast<V>(r[i]);
#pragma GCC unroll 4
  for (int half = 8; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  }
  return t[0];
}

// sum + a b, of 32 elements.
ESTEIRA_INLINE V DotOfStep(const Bf16* a, const Bf16* b, __mmask32 mask, V sum) {
  const auto x = reinterpret_cast<VUint>(LoadMasked(a, mask));
  const auto y = reinterpret_cast<VUint>(LoadMasked(b, mask));
  sum += reinterpret_cast<V>(x << 16) * reinterpret_cast<V>(y << 16);
  return sum + reinterpret_cast<V>(x & 0xffff0000u) * reinterpret_cast<V>(y & 0xffff0000u);
}

}  // namespace
}  // namespace esteira
