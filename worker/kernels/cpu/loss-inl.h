#pragma once

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

// Sums of exponentials run over this many columns in fp32 lanes, then go on in double.
constexpr int64_t kColumnsOfRun = 1024;
constexpr float kLowest = -3.402823466e+38f;

// The largest of a row; NaN when any element is not finite.
template <typename T>
float FiniteMax(const T* x, int64_t columns) {
  V max = Splat(kLowest);
  V poison{};
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const V v = Load(x + i);
    AskAhead(x + i);
    max = Max(v, max);
    poison += Poison(v);
  }
  if (whole < columns) {
    max = Max(LoadSome(x + whole, columns - whole, kLowest), max);
    poison += Poison(LoadSome(x + whole, columns - whole));
  }
  return MaxLanes(max) + SumLanes(poison);
}

template <typename T>
double SumOfExponentials(const T* x, float max, int64_t columns) {
  double total = 0;
  for (int64_t first = 0; first < columns; first += kColumnsOfRun) {
    const int64_t last = first + kColumnsOfRun < columns ? first + kColumnsOfRun : columns;
    V run{};
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) run += ExpUpTo88(Load(x + i) - max);
    if (i < last) run += ExpUpTo88(LoadSome(x + i, last - i, -__builtin_inff()) - max);
    total += SumLanesDouble(run);
  }
  return total;
}

template <typename T>
ESTEIRA_INLINE float ToFloat(T x) {
  return LoadSome(&x, 1)[0];
}

template <typename T>
double CrossEntropyRow(T* logits, int64_t columns, int64_t target, bool gradient) {
  const float max = FiniteMax<T>(logits, columns);
  const double sum = SumOfExponentials<T>(logits, max, columns);
  const double loss =
      __builtin_log(sum) + static_cast<double>(max) - static_cast<double>(ToFloat(logits[target]));
  if (!gradient) return loss;
  const float at_target = __builtin_expf(ToFloat(logits[target]) - max);
  const auto scale = static_cast<float>(1.0 / sum);
  ForEachStreamed(0, columns, [=](auto load, auto store) {
    store(logits, ExpUpTo88(load(static_cast<const T*>(logits)) - max) * scale);
  });
  const auto p = static_cast<double>(at_target) / sum;
  StoreSome(logits + target, Splat(static_cast<float>(p - 1.0)), 1);
  return loss;
}

}  // namespace
}  // namespace esteira
