#include "worker/kernels/cpu/run-inl.h"

namespace esteira {
namespace {

// The rows [begin, end) of a norm.
template <typename T>
NormRows<T> Slice(NormRows<T> norm, int64_t begin, int64_t end) {
  const int64_t offset = begin * norm.columns;
  norm.rows = end - begin;
  norm.x += offset;
  norm.out += offset;
  norm.rstd += begin;
  if (norm.mean != nullptr) norm.mean += begin;
  if (norm.dy != nullptr) norm.dy += offset;
  return norm;
}

template <typename T>
void ForwardRows(int threads, const Loops& loops, const NormRows<T>& norm) {
  ParallelRows(threads, norm.rows, norm.columns, [&](int64_t begin, int64_t end) {
    loops.Of<T>().norm_forward(Slice(norm, begin, end));
  });
}

template <typename T>
void BackwardInputRows(int threads, const Loops& loops, const NormRows<T>& norm) {
  ParallelRows(threads, norm.rows, norm.columns, [&](int64_t begin, int64_t end) {
    loops.Of<T>().norm_backward_input(Slice(norm, begin, end));
  });
}

template <typename T>
void BackwardWeightColumns(int threads, const Loops& loops, const NormColumns<T>& norm) {
  ParallelColumns(threads, norm.rows, norm.columns, [&](int64_t begin, int64_t end) {
    NormColumns<T> columns = norm;
    columns.begin = begin;
    columns.end = end;
    loops.Of<T>().norm_backward_weight(columns);
  });
}

}  // namespace

void CpuKernels::LayerNormForward(Tensor x_NH, Tensor w_H, Tensor b_H, double epsilon, Tensor y_NH,
                                  Tensor mean_N, Tensor rstd_N, Stream& stream) {
  RunTyped(stream, x_NH.type, [=, this](auto element) {
    using T = decltype(element);
    ForwardRows<T>(threads_, loops_,
                   {.rows = x_NH.rows,
                    .columns = x_NH.columns,
                    .x = x_NH.as<T>(),
                    .w = w_H.as<T>(),
                    .b = b_H.as<T>(),
                    .mean = mean_N.as<float>(),
                    .rstd = rstd_N.as<float>(),
                    .epsilon = static_cast<float>(epsilon),
                    .out = y_NH.as<T>()});
    return absl::OkStatus();
  });
}

void CpuKernels::LayerNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor mean_N,
                                        Tensor rstd_N, Tensor dx_NH, Stream& stream) {
  RunTyped(stream, x_NH.type, [=, this](auto element) {
    using T = decltype(element);
    BackwardInputRows<T>(threads_, loops_,
                         {.rows = x_NH.rows,
                          .columns = x_NH.columns,
                          .x = x_NH.as<T>(),
                          .w = w_H.as<T>(),
                          .mean = mean_N.as<float>(),
                          .rstd = rstd_N.as<float>(),
                          .dy = dy_NH.as<T>(),
                          .out = dx_NH.as<T>()});
    return absl::OkStatus();
  });
}

void CpuKernels::LayerNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor mean_N, Tensor rstd_N,
                                         Tensor dw_H, Tensor db_H, Stream& stream) {
  RunTyped(stream, x_NH.type, [=, this](auto element) {
    using T = decltype(element);
    BackwardWeightColumns<T>(threads_, loops_,
                             {.rows = x_NH.rows,
                              .columns = x_NH.columns,
                              .dy = dy_NH.as<T>(),
                              .x = x_NH.as<T>(),
                              .mean = mean_N.as<float>(),
                              .rstd = rstd_N.as<float>(),
                              .dw = dw_H.as<float>(),
                              .db = db_H.as<float>()});
    return absl::OkStatus();
  });
}

void CpuKernels::RmsNormForward(Tensor x_NH, Tensor w_H, double epsilon, Tensor y_NH, Tensor rstd_N,
                                Stream& stream) {
  LayerNormForward(x_NH, w_H, Tensor{}, epsilon, y_NH, Tensor{}, rstd_N, stream);
}

void CpuKernels::RmsNormBackwardInput(Tensor dy_NH, Tensor x_NH, Tensor w_H, Tensor rstd_N,
                                      Tensor dx_NH, Stream& stream) {
  LayerNormBackwardInput(dy_NH, x_NH, w_H, Tensor{}, rstd_N, dx_NH, stream);
}

void CpuKernels::RmsNormBackwardWeight(Tensor dy_NH, Tensor x_NH, Tensor rstd_N, Tensor dw_H,
                                       Stream& stream) {
  LayerNormBackwardWeight(dy_NH, x_NH, Tensor{}, rstd_N, dw_H, Tensor{}, stream);
}

}  // namespace esteira
