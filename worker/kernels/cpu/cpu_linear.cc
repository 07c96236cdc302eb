#include <cstring>

#include "common/base/status_macros.h"
#include "worker/kernels/cpu/run-inl.h"

namespace esteira {

void CpuKernels::LinearForward(Tensor x_NI, Tensor w, Tensor bias_O, WeightLayout layout,
                               Tensor y_NO, Stream& stream) {
  const MatmulShape shape = {.m = x_NI.rows,
                             .n = y_NO.columns,
                             .k = x_NI.columns,
                             .type = x_NI.type,
                             .out_type = y_NO.type,
                             .b_transposed = layout == WeightLayout::kOutIn,
                             .bias = bias_O.data != nullptr};
  Run(stream, [=, this] {
    return matmul_.Run(shape, {.a = x_NI.data, .b = w.data, .bias = bias_O.data, .c = y_NO.data});
  });
}

void CpuKernels::LinearBackwardInput(Tensor dy_NO, Tensor w, WeightLayout layout, Tensor dx_NI,
                                     Stream& stream) {
  const MatmulShape shape = {.m = dy_NO.rows,
                             .n = dx_NI.columns,
                             .k = dy_NO.columns,
                             .type = dy_NO.type,
                             .out_type = dx_NI.type,
                             .b_transposed = layout == WeightLayout::kInOut};
  Run(stream,
      [=, this] { return matmul_.Run(shape, {.a = dy_NO.data, .b = w.data, .c = dx_NI.data}); });
}

void CpuKernels::LinearBackwardWeight(Tensor x_NI, Tensor dy_NO, WeightLayout layout,
                                      GradientSum sum, Tensor dw, Tensor db_O, Stream& stream) {
  const bool in_out = layout == WeightLayout::kInOut;
  const Tensor left = in_out ? x_NI : dy_NO;
  const Tensor right = in_out ? dy_NO : x_NI;
  const MatmulShape shape = {.m = left.columns,
                             .n = right.columns,
                             .k = x_NI.rows,
                             .type = x_NI.type,
                             .out_type = ElementType::kFp32,
                             .a_transposed = true,
                             .accumulate = true,
                             .from_zero = sum == GradientSum::kBegins};
  RunTyped(stream, dy_NO.type, [=, this](auto element) -> absl::Status {
    using T = decltype(element);
    RETURN_IF_ERROR(matmul_.Run(shape, {.a = left.data, .b = right.data, .c = dw.data}));
    if (db_O.data == nullptr) return absl::OkStatus();
    if (shape.from_zero) std::memset(db_O.data, 0, static_cast<size_t>(db_O.bytes()));
    const RowsOf<const T> dy{dy_NO.as<T>(), dy_NO.columns};
    ParallelColumns(threads_, dy_NO.rows, dy_NO.columns, [&](int64_t begin, int64_t end) {
      loops_.Of<T>().column_sums(dy, dy_NO.rows, begin, end, db_O.as<float>());
    });
    return absl::OkStatus();
  });
}

}  // namespace esteira
