// The operations of Kernels as plain functions of host memory, in double. Legend of shapes:
// worker/kernels/kernels.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/reference/matrix.h"

namespace esteira::reference {

absl::Status Convert(const Tensor& from, const Tensor& to);
void Dropout(const Tensor& x, const DropoutMask& mask, const Tensor& y);
void Add(const Tensor& a, const Tensor& b, const Tensor& sum);
void AddIntegers(const Tensor& x, const Tensor& sum);
bool AddFixedPoint(const Tensor& x, float largest, const Tensor& sum);  // whether one was refused
void FromFixedPoint(const Tensor& from, const Tensor& to);

void LinearForward(const Matrix& x_NI, const Matrix& w, const Matrix& bias_O, WeightLayout layout,
                   const Matrix& y_NO);
void LinearBackwardInput(const Matrix& dy_NO, const Matrix& w, WeightLayout layout,
                         const Matrix& dx_NI);
void LinearBackwardWeight(const Matrix& x_NI, const Matrix& dy_NO, WeightLayout layout,
                          const Matrix& dw, const Matrix& db_O);

// Without `b` and `mean`: RMSNorm.
void NormForward(const Matrix& x_NH, const Matrix& w_H, const Matrix& b_H, double epsilon,
                 const Matrix& y_NH, const Matrix& mean_N, const Matrix& rstd_N);
void NormBackwardInput(const Matrix& dy_NH, const Matrix& x_NH, const Matrix& w_H,
                       const Matrix& mean_N, const Matrix& rstd_N, const Matrix& dx_NH);
void NormBackwardWeight(const Matrix& dy_NH, const Matrix& x_NH, const Matrix& mean_N,
                        const Matrix& rstd_N, const Matrix& dw_H, const Matrix& db_H);

void GeluForward(const Tensor& x, const Tensor& y);
void GeluBackward(const Tensor& dy, const Tensor& x, const Tensor& dx);
void SwiGluForward(const Tensor& gate, const Tensor& up, const Tensor& y);
void SwiGluBackward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& dgate,
                    const Tensor& dup);
absl::Status Rope(const Matrix& x, int64_t sequence, int64_t head_size, double theta, bool inverse);

struct AttentionGradients {
  Matrix dq, dk, dv;
};
void AttentionForward(const AttentionShape& shape, const Matrix& q, const Matrix& k,
                      const Matrix& v, const Matrix& y_NH, const Matrix& log_sum_exp);
void AttentionBackward(const AttentionShape& shape, const Matrix& dy_NH, const Matrix& q,
                       const Matrix& k, const Matrix& v, const AttentionGradients& gradients);

absl::Status EmbeddingForward(const Tensor& tokens_N, const Matrix& table_VH,
                              const Matrix& positions_TH, int64_t sequence, const Matrix& y_NH);
absl::Status EmbeddingBackward(const Matrix& dy_NH, const Tensor& tokens_N, int64_t sequence,
                               const Matrix& dtable_VH, const Matrix& dpositions_TH);
absl::Status CrossEntropy(const Matrix& logits_NV, const Tensor& targets_N, bool gradient,
                          LossSums& sums);

void AdamW(const AdamWStep& step, const Tensor& gradient_sum, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& parameters);
void SumSquaresByBlock(const Tensor& x, double* blocks);
bool AnyNonFinite(const Tensor& x);

}  // namespace esteira::reference
