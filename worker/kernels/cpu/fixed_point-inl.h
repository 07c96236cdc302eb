#pragma once

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

// Twice as wide as the registers: of these the loops have local variables only, since they cannot
// be passed to a function.
using VDouble = double __attribute__((vector_size(8 * kLanes)));
using VLong = int64_t __attribute__((vector_size(8 * kLanes)));

constexpr int64_t kElementsLookedAt = 64;  // at once, for whether they are all zero

// Adds kLanes elements of x to sum and clears them; marks in `refused` those that add nothing. The
// product with 2^36 is exact in double, and then rounded to the nearest integer, ties to even.
ESTEIRA_INLINE void AddGroup(float* x, float largest, int64_t* sum, VInt& refused) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  constexpr double kWhole = 2251799813685248.0;  // 2^51: an fp32 this large is an integer
  const V value = Load(x);
  const VInt fits = (value <= largest) & (value >= -largest);  // never for a NaN
  refused |= ~fits;
  const V taken = fits ? value : V{};
  const VDouble scaled = __builtin_convertvector(taken, VDouble) * kFixedPointScale;
  const VDouble rounded = (scaled + kRound) - kRound;
  const VLong small = (scaled < kWhole) & (scaled > -kWhole);
  const VDouble whole = small ? rounded : scaled;
  VLong total;
  __builtin_memcpy(&total, sum, sizeof(total));
  total += __builtin_convertvector(whole, VLong);
  __builtin_memcpy(sum, &total, sizeof(total));
  Store(x, V{});
}

ESTEIRA_INLINE bool AllZero(const float* x) {
  VUint any{};
  for (int64_t i = 0; i < kElementsLookedAt; i += kLanes)
    any |= reinterpret_cast<VUint>(Load(x + i));
  uint32_t words[kLanes];
  __builtin_memcpy(words, &any, sizeof(words));
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) words[i] |= words[i + half];
  }
  return words[0] == 0;
}

// Whether an element was refused. Most rows of a table's gradient are zero: they cost one read.
bool AddFixedPointLoop(float* x, float largest, int64_t* sum, int64_t n) {
  VInt refused{};
  int64_t i = 0;
  while (i + kElementsLookedAt <= n) {
    if (AllZero(x + i)) {
      i += kElementsLookedAt;
      continue;
    }
    for (const int64_t end = i + kElementsLookedAt; i < end; i += kLanes) {
      AddGroup(x + i, largest, sum + i, refused);
    }
  }
  for (; i + kLanes <= n; i += kLanes) AddGroup(x + i, largest, sum + i, refused);
  if (i < n) {
    const auto rest = static_cast<uint64_t>(n - i);
    float some[kLanes] = {};
    int64_t sums[kLanes] = {};
    __builtin_memcpy(some, x + i, rest * sizeof(float));
    __builtin_memcpy(sums, sum + i, rest * sizeof(int64_t));
    AddGroup(some, largest, sums, refused);
    __builtin_memcpy(x + i, some, rest * sizeof(float));
    __builtin_memcpy(sum + i, sums, rest * sizeof(int64_t));
  }
  int32_t lanes[kLanes];
  __builtin_memcpy(lanes, &refused, sizeof(lanes));
  bool any = false;
  for (int64_t lane = 0; lane < kLanes; ++lane) any |= lanes[lane] != 0;
  return any;
}

// Rounded once, from the integer to fp32: the power of two is exact.
void FromFixedPointLoop(const int64_t* from, float* to, int64_t n) {
  constexpr auto kUnit = static_cast<float>(1 / kFixedPointScale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VLong integers;
    __builtin_memcpy(&integers, from + i, sizeof(integers));
    Store(to + i, __builtin_convertvector(integers, V) * kUnit);
  }
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]) * kUnit;
}

void AddIntegersLoop(const int64_t* x, int64_t* sum, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VLong total, more;
    __builtin_memcpy(&total, sum + i, sizeof(total));
    __builtin_memcpy(&more, x + i, sizeof(more));
    total += more;
    __builtin_memcpy(sum + i, &total, sizeof(total));
  }
  for (; i < n; ++i) sum[i] += x[i];
}

}  // namespace
}  // namespace esteira
