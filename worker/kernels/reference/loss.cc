#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/kernels/reference/operations.h"

namespace esteira::reference {
namespace {

absl::Status CheckId(int32_t id, int64_t size) {
  if (id >= 0 && id < size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(id, " is outside a vocabulary of ", size));
}

}  // namespace

absl::Status EmbeddingForward(const Tensor& tokens_N, const Matrix& table_VH,
                              const Matrix& positions_TH, int64_t sequence, const Matrix& y_NH) {
  for (int64_t n = 0; n < y_NH.rows(); ++n) {
    const int32_t token = tokens_N.as<int32_t>()[n];
    RETURN_IF_ERROR(CheckId(token, table_VH.rows()));
    for (int64_t h = 0; h < y_NH.columns(); ++h) {
      const double position = positions_TH.exists() ? positions_TH(n % sequence, h) : 0.0;
      y_NH.Set(n, h, table_VH(token, h) + position);
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingBackward(const Matrix& dy_NH, const Tensor& tokens_N, int64_t sequence,
                               const Matrix& dtable_VH, const Matrix& dpositions_TH) {
  for (int64_t n = 0; n < dy_NH.rows(); ++n) {
    const int32_t token = tokens_N.as<int32_t>()[n];
    if (dtable_VH.exists()) RETURN_IF_ERROR(CheckId(token, dtable_VH.rows()));
    for (int64_t h = 0; h < dy_NH.columns(); ++h) {
      if (dtable_VH.exists()) dtable_VH.Add(token, h, dy_NH(n, h));
      if (dpositions_TH.exists()) dpositions_TH.Add(n % sequence, h, dy_NH(n, h));
    }
  }
  return absl::OkStatus();
}

absl::Status CrossEntropy(const Matrix& logits_NV, const Tensor& targets_N, bool gradient,
                          LossSums& sums) {
  const int64_t vocabulary = logits_NV.columns();
  for (int64_t n = 0; n < logits_NV.rows(); ++n) {
    const int32_t target = targets_N.as<int32_t>()[n];
    const bool valid = target != kIgnoredTarget;
    if (valid) RETURN_IF_ERROR(CheckId(target, vocabulary));
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < vocabulary; ++v) max = std::max(max, logits_NV(n, v));
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logits_NV(n, v) - max);
    if (valid) {
      sums.loss += max + std::log(sum) - logits_NV(n, target);
      ++sums.valid_tokens;
    }
    if (!gradient) continue;
    for (int64_t v = 0; v < vocabulary; ++v) {
      const double p = std::exp(logits_NV(n, v) - max) / sum;
      logits_NV.Set(n, v, valid ? p - (v == target ? 1.0 : 0.0) : 0.0);
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira::reference
