#include <cmath>

#include "common/base/status_macros.h"
#include "worker/kernels/cpu/run-inl.h"

namespace esteira {
namespace {

// As AttentionWorkspaceElements of common/plan/sizes.h counts.
constexpr int kPairsAtOnce = 16;
constexpr int64_t kMatricesOfPair = 3;

template <typename T>
RowsOf<T> ColumnsFrom(RowsOf<T> x, int64_t row, int64_t column) {
  if (x.data == nullptr) return x;
  return {x.row(row) + column, x.stride};
}

// What the pair (sequence b, key-value head h) works on.
template <typename T>
AttentionPair<T> PairOf(const AttentionPair<T>& whole, int64_t b, int64_t h) {
  const int64_t row = b * whole.sequence;
  const int64_t kv = h * whole.head_size;
  const int64_t q = kv * whole.group;
  AttentionPair<T> pair = whole;
  pair.q = ColumnsFrom(whole.q, row, q);
  pair.k = ColumnsFrom(whole.k, row, kv);
  pair.v = ColumnsFrom(whole.v, row, kv);
  pair.y = ColumnsFrom(whole.y, row, q);
  pair.log_sum_exp = ColumnsFrom(whole.log_sum_exp, row, h * whole.group);
  pair.dy = ColumnsFrom(whole.dy, row, q);
  pair.y_saved = ColumnsFrom(whole.y_saved, row, q);
  pair.dq = ColumnsFrom(whole.dq, row, q);
  pair.dk = ColumnsFrom(whole.dk, row, kv);
  pair.dv = ColumnsFrom(whole.dv, row, kv);
  return pair;
}

template <typename T>
RowsOf<T> Rows(const Kernels::Strided& x) {
  return {x.view.as<std::remove_const_t<T>>(), x.row_stride};
}

template <typename T>
RowsOf<T> Rows(const Tensor& x) {
  return {x.as<std::remove_const_t<T>>(), x.columns};
}

template <typename T>
AttentionPair<T> WholeOf(const AttentionShape& shape, const Kernels::Strided& q,
                         const Kernels::Strided& k, const Kernels::Strided& v,
                         const Tensor& log_sum_exp) {
  AttentionPair<T> whole;
  whole.sequence = shape.sequence;
  whole.head_size = shape.head_size;
  whole.group = shape.num_heads / shape.num_kv_heads;
  whole.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_size)));
  whole.q = Rows<const T>(q);
  whole.k = Rows<const T>(k);
  whole.v = Rows<const T>(v);
  whole.log_sum_exp = {log_sum_exp.as<float>(), shape.num_heads};
  return whole;
}

}  // namespace

template <typename T>
absl::Status CpuKernels::ForEachPair(const AttentionShape& shape, const AttentionPair<T>& whole,
                                     Tensor workspace, void (*loop)(const AttentionPair<T>&)) {
  const int64_t scratch = loops_.Of<T>().attention_scratch(shape.sequence, shape.head_size);
  const int64_t matrix = shape.sequence * shape.head_size;
  const int threads = std::min(threads_, kPairsAtOnce);
  std::lock_guard lock(scratch_mutex_);
  RETURN_IF_ERROR(attention_.Reserve(threads * scratch * static_cast<int64_t>(sizeof(float))));
  const int64_t pairs = shape.batch * shape.num_kv_heads;
  ParallelRanges(threads, pairs, 1, [&](int part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      AttentionPair<T> pair = PairOf(whole, i / shape.num_kv_heads, i % shape.num_kv_heads);
      pair.packed = workspace.as<float>() + part * kMatricesOfPair * matrix;
      pair.sums = pair.packed + matrix;
      pair.scratch = reinterpret_cast<float*>(attention_.data()) + part * scratch;
      loop(pair);
    }
  });
  return absl::OkStatus();
}

void CpuKernels::AttentionForward(const AttentionShape& shape, Strided q, Strided k, Strided v,
                                  Tensor y_NH, Tensor log_sum_exp, Tensor workspace,
                                  Stream& stream) {
  RunTyped(stream, q.view.type, [=, this](auto element) {
    using T = decltype(element);
    AttentionPair<T> whole = WholeOf<T>(shape, q, k, v, log_sum_exp);
    whole.y = Rows<T>(y_NH);
    return ForEachPair<T>(shape, whole, workspace, loops_.Of<T>().attention_forward);
  });
}

void CpuKernels::AttentionBackward(const AttentionShape& shape, Tensor dy_NH, Strided q, Strided k,
                                   Strided v, Tensor y_NH, Tensor log_sum_exp, Strided dq,
                                   Strided dk, Strided dv, Tensor workspace, Stream& stream) {
  RunTyped(stream, q.view.type, [=, this](auto element) {
    using T = decltype(element);
    AttentionPair<T> whole = WholeOf<T>(shape, q, k, v, log_sum_exp);
    whole.dy = Rows<const T>(dy_NH);
    whole.y_saved = Rows<const T>(y_NH);
    whole.dq = Rows<T>(dq);
    whole.dk = Rows<T>(dk);
    whole.dv = Rows<T>(dv);
    return ForEachPair<T>(shape, whole, workspace, loops_.Of<T>().attention_backward);
  });
}

}  // namespace esteira
