#pragma once

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

template <typename T>
void ToFp32(const T* from, float* to, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) { store(to, load(from)); });
}

template <typename T>
void FromFp32(const float* from, T* to, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) { store(to, load(from)); });
}

template <typename T>
void AddLoop(const T* a, const T* b, T* sum, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) { store(sum, load(a) + load(b)); });
}

template <typename T>
void AccumulateLoop(const T* x, float* sum, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) { store(sum, load(sum) + load(x)); });
}

// Sums are formed in runs of this many rows, and the runs added up: the rounding error grows with
// neither alone.
constexpr int64_t kRowsOfRun = 64;

// Groups of columns that go down the rows together, so that each row gives whole cache lines.
#if defined(__AVX512F__)
constexpr int kGroupsOfBlock = 4;
#else
constexpr int kGroupsOfBlock = 2;
#endif

template <int kGroups>
struct Groups {
  static constexpr int kCount = kGroups;
};

// Going down the rows, they are asked for this many before they are read.
constexpr int64_t kRowsAhead = 16;

// Calls body(groups, load, store) for every block of columns of a matrix, a type Groups<n>;
// load(p, g) and store(p, g, v) reach group g of row p, load(p, g, stride) of rows that follow each
// other.
template <typename Body>
ESTEIRA_INLINE void ForEachColumnBlock(int64_t begin, int64_t end, Body body) {
  constexpr int64_t kColumns = kGroupsOfBlock * kLanes;
  int64_t i = begin;
  for (; i + kColumns <= end; i += kColumns) {
    body(
        Groups<kGroupsOfBlock>{},
        [i](const auto* p, int g, int64_t stride = 0) {
          if (stride > 0) __builtin_prefetch(p + i + g * kLanes + kRowsAhead * stride);
          return Load(p + i + g * kLanes);
        },
        [i](auto* p, int g, V v) { Store(p + i + g * kLanes, v); });
  }
  ForEachGroup(i, end, [&](auto load, auto store) {
    body(
        Groups<1>{}, [&](const auto* p, int, int64_t = 0) { return load(p); },
        [&](auto* p, int, V v) { store(p, v); });
  });
}

template <typename T>
void ColumnSums(RowsOf<const T> x, int64_t rows, int64_t begin, int64_t end, float* sums) {
  ForEachColumnBlock(begin, end, [=](auto groups, auto load, auto store) {
    constexpr int kGroups = decltype(groups)::kCount;
    V total[kGroups] = {};
    for (int64_t first = 0; first < rows; first += kRowsOfRun) {
      const int64_t last = first + kRowsOfRun < rows ? first + kRowsOfRun : rows;
      V run[kGroups] = {};
      for (int64_t r = first; r < last; ++r) {
        for (int g = 0; g < kGroups; ++g) run[g] += load(x.row(r), g, x.stride);
      }
      for (int g = 0; g < kGroups; ++g) total[g] += run[g];
    }
    for (int g = 0; g < kGroups; ++g) store(sums, g, load(sums, g) + total[g]);
  });
}

// GELU with tanh is x s(x) with s(x) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), since
// 1 + tanh(u) = 2 sigmoid(2 u): no cancellation for negative x.
constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kGeluCubic = 0.044715f;

ESTEIRA_INLINE V GeluGate(V x) {
  return Sigmoid(x * (kTwoSqrtTwoOverPi + kTwoSqrtTwoOverPi * kGeluCubic * x * x));
}

template <typename T>
void GeluForwardLoop(const T* x, T* y, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) {
    const V v = load(x);
    store(y, v * GeluGate(v));
  });
}

// Beyond this |x| the gate is 0 or 1 in fp32, and x^2 might overflow.
constexpr float kGeluSaturated = 20.0f;

template <typename T>
void GeluBackwardLoop(const T* dy, const T* x, T* dx, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) {
    const V v = load(x);
    V c = v > kGeluSaturated ? Splat(kGeluSaturated) : v;
    c = c < -kGeluSaturated ? Splat(-kGeluSaturated) : c;
    const V s = GeluGate(c);
    const V du = kTwoSqrtTwoOverPi + 3.0f * kTwoSqrtTwoOverPi * kGeluCubic * c * c;
    store(dx, load(dy) * (s + c * s * (1.0f - s) * du + Poison(v)));
  });
}

template <typename T>
void SwiGluForwardLoop(const T* gate, const T* up, T* y, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) {
    const V g = load(gate);
    store(y, g * Sigmoid(g) * load(up));
  });
}

template <typename T>
void SwiGluBackwardLoop(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) {
    const V g = load(gate);
    const V u = load(up);
    const V d = load(dy);
    const V s = Sigmoid(g);
    store(dgate, d * u * s * (1.0f + g * (1.0f - s)));
    store(dup, d * g * s);
  });
}

template <typename T>
void RotateLoop(T* x, const float* cosine, const float* sine, int64_t half, bool inverse) {
  T* const upper = x + half;
  const float sign = inverse ? -1.0f : 1.0f;
  ForEachStreamed(0, half, [=](auto load, auto store) {
    const V c = load(cosine);
    const V s = load(sine) * sign;
    const V a = load(static_cast<const T*>(x));
    const V b = load(static_cast<const T*>(upper));
    store(x, a * c - b * s);
    store(upper, b * c + a * s);
  });
}

template <typename T>
bool AnyNonFinite(const T* x, int64_t n) {
  V poison{};
  ForEachStreamed(0, n, [&](auto load, auto) { poison += Poison(load(x)); });
  const float sum = SumLanes(poison);
  return sum != sum;
}

}  // namespace
}  // namespace esteira
