// A vector of fp32 lanes and what the loops need of it: loads and stores of fp32 and bf16, exp,
// sums.
//
// Included only by the loops_*.cc files, each compiled for one instruction set, whose width it
// takes. Everything is in an anonymous namespace and uses no library template: code that the linker
// could merge across those files would run on the wrong CPU. The order of every sum is that of the
// lanes: it depends on neither address nor alignment.
#pragma once

#include <cstdint>

#include "worker/kernels/cpu/loops.h"

namespace esteira {
namespace {

#define ESTEIRA_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

using V = float __attribute__((vector_size(4 * kLanes)));
using VInt = int32_t __attribute__((vector_size(4 * kLanes)));
using VUint = uint32_t __attribute__((vector_size(4 * kLanes)));
using VHalf = uint16_t __attribute__((vector_size(2 * kLanes)));

// x - 0 is x, also for -0: the compiler leaves the subtraction out, as it could not with 0 + x.
ESTEIRA_INLINE V Splat(float x) { return x - V{}; }

ESTEIRA_INLINE VInt LaneIndices() {
  VInt v{};
  for (int32_t i = 0; i < static_cast<int32_t>(kLanes); ++i) v[i] = i;
  return v;
}

ESTEIRA_INLINE V Load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

ESTEIRA_INLINE V Load(const Bf16* p) {
  VHalf half;
  __builtin_memcpy(&half, p, sizeof(half));
  const VUint wide = __builtin_convertvector(half, VUint) << 16;
  return reinterpret_cast<V>(wide);
}

ESTEIRA_INLINE void Store(float* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }

// Rounds to nearest, ties to even; a NaN stays one (made quiet). CPUs have an instruction for it,
// but it makes subnormal numbers zero.
ESTEIRA_INLINE void Store(Bf16* p, V v) {
  const VUint bits = reinterpret_cast<VUint>(v);
  const VUint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VUint quiet = (bits >> 16) | 0x40u;
  const VInt is_nan = v != v;  // NOLINT(misc-redundant-expression)
  const VHalf half = __builtin_convertvector(is_nan ? quiet : rounded, VHalf);
  __builtin_memcpy(p, &half, sizeof(half));
}

// The first `count` < kLanes elements; the other lanes are `fill`.
template <typename T>
ESTEIRA_INLINE V LoadSome(const T* p, int64_t count, float fill = 0.0f) {
  T lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<uint64_t>(count) * sizeof(T));
  const VInt inside = LaneIndices() < static_cast<int32_t>(count);
  return inside ? Load(lanes) : Splat(fill);
}

template <typename T>
ESTEIRA_INLINE void StoreSome(T* p, V v, int64_t count) {
  T lanes[kLanes];
  Store(lanes, v);
  __builtin_memcpy(p, lanes, static_cast<uint64_t>(count) * sizeof(T));
}

// Calls body(i, load, store) for every group of kLanes columns of a row; load(p) and store(p, v)
// reach element i of row p, whole or in part.
template <typename Body>
ESTEIRA_INLINE void ForEachGroup(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body([i](const auto* p) { return Load(p + i); }, [i](auto* p, V v) { Store(p + i, v); });
  }
  if (i == end) return;
  const int64_t rest = end - i;
  body([i, rest](const auto* p) { return LoadSome(p + i, rest); },
       [i, rest](auto* p, V v) { StoreSome(p + i, v, rest); });
}

// Streams are asked for this far ahead, by load and by store: with several of them the CPU's own
// prefetching is not enough. Beyond the end of an array it does nothing.
constexpr int64_t kBytesAhead = 2048;

template <typename T>
ESTEIRA_INLINE void AskAhead(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + kBytesAhead);
}

// ForEachGroup for what comes from memory once, from beginning to end.
template <typename Body>
ESTEIRA_INLINE void ForEachStreamed(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(
        [i](const auto* p) {
          AskAhead(p + i);
          return Load(p + i);
        },
        [i](auto* p, V v) {
          AskAhead(p + i);
          Store(p + i, v);
        });
  }
  ForEachGroup(i, end, body);
}

ESTEIRA_INLINE V Max(V a, V b) { return a > b ? a : b; }

// Zero for a finite x, NaN otherwise: adding it keeps a non-finite input from vanishing.
ESTEIRA_INLINE V Poison(V x) { return x - x; }  // NOLINT(misc-redundant-expression)

ESTEIRA_INLINE float SumLanes(V v) {
  float s[kLanes];
  Store(s, v);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) s[i] += s[i + half];
  }
  return s[0];
}

ESTEIRA_INLINE double SumLanesDouble(V v) {
  float lanes[kLanes];
  Store(lanes, v);
  double s[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) s[i] = static_cast<double>(lanes[i]);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) s[i] += s[i + half];
  }
  return s[0];
}

ESTEIRA_INLINE float MaxLanes(V v) {
  float s[kLanes];
  Store(s, v);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
  }
  return s[0];
}

ESTEIRA_INLINE V Sqrt(V v) {
  float s[kLanes];
  Store(s, v);
  for (int64_t i = 0; i < kLanes; ++i) s[i] = __builtin_sqrtf(s[i]);
  return Load(s);
}

constexpr float kLowestExponent = -87.0f;
constexpr float kHighestExponent = 88.0f;

#if defined(__AVX512F__)
// exp(x) for x <= 88 or NaN, error below 2 ulp; 0 below -87, so that no subnormal number is made.
// Range reduction by Cody and Waite, x = n ln 2 + r, then the Taylor polynomial of degree 6 on
// |r| <= ln 2 / 2, whose remainder is below 1.2e-7, scaled by 2^n in one instruction.
ESTEIRA_INLINE V ExpUpTo88(V x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V n = (x * 1.44269504088896341f + kRound) - kRound;
  V r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  V p = Splat(1.0f / 720.0f);
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  constexpr int kNotLess = 5, kCurrentRounding = 4;
  const auto kept =
      __builtin_ia32_cmpps512_mask(x, Splat(kLowestExponent), kNotLess, 0xffff, kCurrentRounding);
  return __builtin_ia32_scalefps512_mask(p, n, V{}, kept, kCurrentRounding);
}
#else
// exp(x) for x in [-87, 88] or NaN, error below 2 ulp. Range reduction by Cody and Waite, x = n ln
// 2 + r, then the Taylor polynomial of degree 7 on |r| <= ln 2 / 2, whose remainder is below 6e-9.
ESTEIRA_INLINE V ExpInRange(V x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = x * 1.44269504088896341f + kRound;
  const VInt n = reinterpret_cast<VInt>(shifted) - reinterpret_cast<VInt>(Splat(kRound));
  const V n_float = shifted - kRound;
  V r = x - n_float * 0.693359375f;
  r = r - n_float * -2.12194440e-4f;
  V p = Splat(1.0f / 5040.0f);
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  return p * reinterpret_cast<V>((n + 127) << 23);
}

// exp(x) for x <= 88 or NaN; 0 below -87, so that no subnormal number is made.
ESTEIRA_INLINE V ExpUpTo88(V x) {
  const V lowest = Splat(kLowestExponent);
  const V y = ExpInRange(lowest > x ? lowest : x);
  return x < kLowestExponent ? V{} : y;
}
#endif

// The same for any x; infinity above 88.
ESTEIRA_INLINE V Exp(V x) {
  const V highest = Splat(kHighestExponent);
  const V y = ExpUpTo88(highest < x ? highest : x);
  return x > kHighestExponent ? Splat(__builtin_inff()) : y;
}

// 1 / (1 + exp(-x)).
ESTEIRA_INLINE V Sigmoid(V x) { return 1.0f / (1.0f + Exp(-x)); }

}  // namespace
}  // namespace esteira
