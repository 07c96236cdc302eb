#include <cmath>

#include "worker/kernels/reference/operations.h"

namespace esteira::reference {
namespace {

double WeightAt(const Matrix& w, WeightLayout layout, int64_t i, int64_t o) {
  return layout == WeightLayout::kInOut ? w(i, o) : w(o, i);
}

double MeanAt(const Matrix& mean_N, int64_t n) { return mean_N.exists() ? mean_N(n) : 0.0; }

}  // namespace

void LinearForward(const Matrix& x_NI, const Matrix& w, const Matrix& bias_O, WeightLayout layout,
                   const Matrix& y_NO) {
  for (int64_t n = 0; n < x_NI.rows(); ++n) {
    for (int64_t o = 0; o < y_NO.columns(); ++o) {
      double sum = bias_O.exists() ? bias_O(o) : 0.0;
      for (int64_t i = 0; i < x_NI.columns(); ++i) sum += x_NI(n, i) * WeightAt(w, layout, i, o);
      y_NO.Set(n, o, sum);
    }
  }
}

void LinearBackwardInput(const Matrix& dy_NO, const Matrix& w, WeightLayout layout,
                         const Matrix& dx_NI) {
  for (int64_t n = 0; n < dy_NO.rows(); ++n) {
    for (int64_t i = 0; i < dx_NI.columns(); ++i) {
      double sum = 0;
      for (int64_t o = 0; o < dy_NO.columns(); ++o) sum += dy_NO(n, o) * WeightAt(w, layout, i, o);
      dx_NI.Set(n, i, sum);
    }
  }
}

void LinearBackwardWeight(const Matrix& x_NI, const Matrix& dy_NO, WeightLayout layout,
                          const Matrix& dw, const Matrix& db_O) {
  for (int64_t o = 0; o < dy_NO.columns(); ++o) {
    for (int64_t i = 0; i < x_NI.columns(); ++i) {
      double sum = 0;
      for (int64_t n = 0; n < x_NI.rows(); ++n) sum += x_NI(n, i) * dy_NO(n, o);
      layout == WeightLayout::kInOut ? dw.Add(i, o, sum) : dw.Add(o, i, sum);
    }
    if (!db_O.exists()) continue;
    double sum = 0;
    for (int64_t n = 0; n < dy_NO.rows(); ++n) sum += dy_NO(n, o);
    db_O.Add(o, sum);
  }
}

void NormForward(const Matrix& x_NH, const Matrix& w_H, const Matrix& b_H, double epsilon,
                 const Matrix& y_NH, const Matrix& mean_N, const Matrix& rstd_N) {
  const int64_t hidden = x_NH.columns();
  for (int64_t n = 0; n < x_NH.rows(); ++n) {
    double mean = 0;
    if (mean_N.exists()) {
      for (int64_t h = 0; h < hidden; ++h) mean += x_NH(n, h) / static_cast<double>(hidden);
      mean_N.Set(n, mean);
    }
    double variance = 0;
    for (int64_t h = 0; h < hidden; ++h) {
      variance += (x_NH(n, h) - mean) * (x_NH(n, h) - mean) / static_cast<double>(hidden);
    }
    const double rstd = 1.0 / std::sqrt(variance + epsilon);
    rstd_N.Set(n, rstd);
    for (int64_t h = 0; h < hidden; ++h) {
      const double bias = b_H.exists() ? b_H(h) : 0.0;
      y_NH.Set(n, h, (x_NH(n, h) - mean) * rstd * w_H(h) + bias);
    }
  }
}

void NormBackwardInput(const Matrix& dy_NH, const Matrix& x_NH, const Matrix& w_H,
                       const Matrix& mean_N, const Matrix& rstd_N, const Matrix& dx_NH) {
  const int64_t hidden = x_NH.columns();
  for (int64_t n = 0; n < x_NH.rows(); ++n) {
    const double rstd = rstd_N(n);
    const auto xhat = [&](int64_t h) { return (x_NH(n, h) - MeanAt(mean_N, n)) * rstd; };
    double mean_g = 0;
    double mean_g_xhat = 0;
    for (int64_t h = 0; h < hidden; ++h) {
      const double g = dy_NH(n, h) * w_H(h) / static_cast<double>(hidden);
      mean_g += g;
      mean_g_xhat += g * xhat(h);
    }
    if (!mean_N.exists()) mean_g = 0;
    for (int64_t h = 0; h < hidden; ++h) {
      dx_NH.Set(n, h, rstd * (dy_NH(n, h) * w_H(h) - mean_g - xhat(h) * mean_g_xhat));
    }
  }
}

void NormBackwardWeight(const Matrix& dy_NH, const Matrix& x_NH, const Matrix& mean_N,
                        const Matrix& rstd_N, const Matrix& dw_H, const Matrix& db_H) {
  for (int64_t h = 0; h < x_NH.columns(); ++h) {
    double dw = 0;
    double db = 0;
    for (int64_t n = 0; n < x_NH.rows(); ++n) {
      dw += dy_NH(n, h) * (x_NH(n, h) - MeanAt(mean_N, n)) * rstd_N(n);
      db += dy_NH(n, h);
    }
    dw_H.Add(h, dw);
    if (db_H.exists()) db_H.Add(h, db);
  }
}

}  // namespace esteira::reference
