// LayerNorm and RMSNorm: xhat = (x - mean) rstd, y = xhat w + b; RMSNorm is the same with mean 0
// and no b.
#pragma once

#include "worker/kernels/cpu/pointwise-inl.h"

namespace esteira {
namespace {

// Sums over one row: fp32 lanes, then a fixed tree.
template <typename T>
float MeanOfRow(const T* x, int64_t columns) {
  V sum{};
  ForEachStreamed(0, columns, [&](auto load, auto) { sum += load(x); });
  return SumLanes(sum) / static_cast<float>(columns);
}

template <typename T>
float MeanSquareOfRow(const T* x, float mean, int64_t columns) {
  V sum{};
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    AskAhead(x + i);
    const V d = Load(x + i) - mean;
    sum += d * d;
  }
  if (whole < columns) {
    const V d = LoadSome(x + whole, columns - whole, mean) - mean;
    sum += d * d;
  }
  return SumLanes(sum) / static_cast<float>(columns);
}

template <typename T>
void NormForward(const NormRows<T>& norm) {
  for (int64_t r = 0; r < norm.rows; ++r) {
    const T* x = norm.x + r * norm.columns;
    T* y = norm.out + r * norm.columns;
    const float mean = norm.mean == nullptr ? 0.0f : MeanOfRow(x, norm.columns);
    const float rstd =
        1.0f / __builtin_sqrtf(MeanSquareOfRow(x, mean, norm.columns) + norm.epsilon);
    if (norm.mean != nullptr) norm.mean[r] = mean;
    norm.rstd[r] = rstd;
    const T* b = norm.b;
    if (b == nullptr) {
      ForEachStreamed(0, norm.columns, [=, w = norm.w](auto load, auto store) {
        store(y, (load(x) - mean) * rstd * load(w));
      });
    } else {
      ForEachStreamed(0, norm.columns, [=, w = norm.w](auto load, auto store) {
        store(y, (load(x) - mean) * rstd * load(w) + load(b));
      });
    }
  }
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy w; RMSNorm has no mean(g).
template <typename T>
void NormBackwardInput(const NormRows<T>& norm) {
  for (int64_t r = 0; r < norm.rows; ++r) {
    const T* x = norm.x + r * norm.columns;
    const T* dy = norm.dy + r * norm.columns;
    T* dx = norm.out + r * norm.columns;
    const T* w = norm.w;
    const float mean = norm.mean == nullptr ? 0.0f : norm.mean[r];
    const float rstd = norm.rstd[r];
    V sum_g{};
    V sum_g_xhat{};
    ForEachStreamed(0, norm.columns, [&](auto load, auto) {
      const V g = load(dy) * load(w);
      sum_g += g;
      sum_g_xhat += g * (load(x) - mean) * rstd;
    });
    const auto columns = static_cast<float>(norm.columns);
    const float mean_g = norm.mean == nullptr ? 0.0f : SumLanes(sum_g) / columns;
    const float mean_g_xhat = SumLanes(sum_g_xhat) / columns;
    ForEachStreamed(0, norm.columns, [=](auto load, auto store) {
      const V xhat = (load(x) - mean) * rstd;
      store(dx, rstd * (load(dy) * load(w) - mean_g - xhat * mean_g_xhat));
    });
  }
}

template <typename T>
void NormBackwardWeight(const NormColumns<T>& norm) {
  ForEachColumnBlock(norm.begin, norm.end, [&norm](auto groups, auto load, auto store) {
    constexpr int kGroups = decltype(groups)::kCount;
    V total_w[kGroups] = {};
    V total_b[kGroups] = {};
    for (int64_t first = 0; first < norm.rows; first += kRowsOfRun) {
      const int64_t last = first + kRowsOfRun < norm.rows ? first + kRowsOfRun : norm.rows;
      V run_w[kGroups] = {};
      V run_b[kGroups] = {};
      for (int64_t r = first; r < last; ++r) {
        const float mean = norm.mean == nullptr ? 0.0f : norm.mean[r];
        const float rstd = norm.rstd[r];
        for (int g = 0; g < kGroups; ++g) {
          const V dy = load(norm.dy + r * norm.columns, g, norm.columns);
          run_w[g] += dy * ((load(norm.x + r * norm.columns, g, norm.columns) - mean) * rstd);
          run_b[g] += dy;
        }
      }
      for (int g = 0; g < kGroups; ++g) {
        total_w[g] += run_w[g];
        total_b[g] += run_b[g];
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      store(norm.dw, g, load(norm.dw, g) + total_w[g]);
      if (norm.db != nullptr) store(norm.db, g, load(norm.db, g) + total_b[g]);
    }
  });
}

}  // namespace
}  // namespace esteira
