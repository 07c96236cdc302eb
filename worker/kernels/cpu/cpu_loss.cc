#include <array>
#include <cstring>

#include "common/base/status_macros.h"
#include "worker/kernels/cpu/run-inl.h"

namespace esteira {
namespace {

// Rows whose losses are kept until they are added up in order.
constexpr int64_t kRowsOfBlock = 256;

absl::Status CheckIds(Tensor ids_N, int64_t size, bool may_be_ignored, const char* what) {
  const auto* ids = ids_N.as<int32_t>();
  for (int64_t n = 0; n < ids_N.elements(); ++n) {
    if (ids[n] >= 0 && ids[n] < size) continue;
    if (may_be_ignored && ids[n] == kIgnoredTarget) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", ids[n], " in row ", n, " is outside a vocabulary of ", size));
  }
  return absl::OkStatus();
}

template <typename T>
void CrossEntropyRows(int threads, const Loops& loops, Tensor logits_NV, const int32_t* targets,
                      LossSums* sums, bool gradient) {
  const int64_t columns = logits_NV.columns;
  std::array<double, kRowsOfBlock> losses;
  for (int64_t first = 0; first < logits_NV.rows; first += kRowsOfBlock) {
    const int64_t rows = std::min(kRowsOfBlock, logits_NV.rows - first);
    ParallelRows(threads, rows, columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* const row = logits_NV.as<T>() + (first + r) * columns;
        const int32_t target = targets[first + r];
        if (target != kIgnoredTarget) {
          losses[static_cast<size_t>(r)] =
              loops.Of<T>().cross_entropy_row(row, columns, target, gradient);
        } else if (gradient) {
          std::memset(row, 0, static_cast<size_t>(columns) * sizeof(T));
        }
      }
    });
    for (int64_t r = 0; r < rows; ++r) {
      if (targets[first + r] == kIgnoredTarget) continue;
      sums->loss += losses[static_cast<size_t>(r)];
      ++sums->valid_tokens;
    }
  }
}

}  // namespace

void CpuKernels::EmbeddingForward(Tensor tokens_N, Tensor table_VH, Tensor positions_TH,
                                  int64_t sequence, Tensor y_NH, Stream& stream) {
  RunTyped(stream, table_VH.type, [=, this](auto element) -> absl::Status {
    using T = decltype(element);
    RETURN_IF_ERROR(CheckIds(tokens_N, table_VH.rows, false, "token"));
    const int64_t hidden = y_NH.columns;
    ParallelRows(threads_, y_NH.rows, hidden, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* from = table_VH.as<T>() + tokens_N.as<int32_t>()[n] * hidden;
        T* const y = y_NH.as<T>() + n * hidden;
        if (positions_TH.data == nullptr) {
          std::memcpy(y, from, static_cast<size_t>(hidden) * sizeof(T));
        } else {
          loops_.Of<T>().add(from, positions_TH.as<T>() + n % sequence * hidden, y, hidden);
        }
      }
    });
    return absl::OkStatus();
  });
}

void CpuKernels::EmbeddingBackward(Tensor dy_NH, Tensor tokens_N, int64_t sequence,
                                   Tensor dtable_VH, Tensor dpositions_TH, Stream& stream) {
  RunTyped(stream, dy_NH.type, [=, this](auto element) -> absl::Status {
    using T = decltype(element);
    const bool has_table = dtable_VH.data != nullptr;
    if (has_table) RETURN_IF_ERROR(CheckIds(tokens_N, dtable_VH.rows, false, "token"));
    const int64_t hidden = dy_NH.columns;
    ParallelColumns(threads_, dy_NH.rows, hidden, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < dy_NH.rows; ++n) {
        const T* const dy = dy_NH.as<T>() + n * hidden + begin;
        if (has_table) {
          const int64_t at = tokens_N.as<int32_t>()[n] * hidden + begin;
          loops_.Of<T>().accumulate(dy, dtable_VH.as<float>() + at, end - begin);
        }
        if (dpositions_TH.data != nullptr) {
          const int64_t at = n % sequence * hidden + begin;
          loops_.Of<T>().accumulate(dy, dpositions_TH.as<float>() + at, end - begin);
        }
      }
    });
    return absl::OkStatus();
  });
}

void CpuKernels::CrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, Stream& stream) {
  RunCrossEntropy(logits_NV, targets_N, sums, true, stream);
}

void CpuKernels::CrossEntropyLoss(Tensor logits_NV, Tensor targets_N, LossSums* sums,
                                  Stream& stream) {
  RunCrossEntropy(logits_NV, targets_N, sums, false, stream);
}

void CpuKernels::RunCrossEntropy(Tensor logits_NV, Tensor targets_N, LossSums* sums, bool gradient,
                                 Stream& stream) {
  RunTyped(stream, logits_NV.type, [=, this](auto element) -> absl::Status {
    RETURN_IF_ERROR(CheckIds(targets_N, logits_NV.columns, true, "target"));
    CrossEntropyRows<decltype(element)>(threads_, loops_, logits_NV, targets_N.as<int32_t>(), sums,
                                        gradient);
    return absl::OkStatus();
  });
}

}  // namespace esteira
