#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "common/base/status_macros.h"
#include "worker/kernels/cpu/run-inl.h"
#include "worker/kernels/dropout_row.h"

namespace esteira {
namespace {

constexpr int64_t kDropoutPiece = 256;

// From this size on what is cleared is not read soon, and its old content need not be read at all.
constexpr int64_t kStreamedBytes = int64_t{8} << 20;

void ClearPastCaches(std::byte* data, int64_t bytes) {
  const auto lead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(data) % sizeof(__m128i));
  std::memset(data, 0, static_cast<size_t>(lead));
  int64_t i = lead;
  for (; i + static_cast<int64_t>(sizeof(__m128i)) <= bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(data + i), _mm_setzero_si128());
  }
  _mm_sfence();
  std::memset(data + i, 0, static_cast<size_t>(bytes - i));
}

}  // namespace

void CpuKernels::Zero(Tensor x, Stream& stream) {
  Run(stream, [=, this] {
    ParallelElements(threads_, x.bytes(), [&](int64_t begin, int64_t n) {
      if (x.bytes() < kStreamedBytes) {
        std::memset(x.data + begin, 0, static_cast<size_t>(n));
      } else {
        ClearPastCaches(x.data + begin, n);
      }
    });
    return absl::OkStatus();
  });
}

void CpuKernels::Convert(Tensor from, Tensor to, Stream& stream) {
  Run(stream, [=, this]() -> absl::Status {
    const bool widen = from.type == ElementType::kBf16 && to.type == ElementType::kFp32;
    const bool narrow = from.type == ElementType::kFp32 && to.type == ElementType::kBf16;
    if (from.type != to.type && !widen && !narrow) {
      return absl::InvalidArgumentError("Convert is between fp32 and bf16, or a copy");
    }
    const int64_t bytes = BytesOf(from.type);
    ParallelElements(threads_, from.elements(), [&](int64_t begin, int64_t n) {
      if (widen) {
        loops_.bf16.to_fp32(from.as<Bf16>() + begin, to.as<float>() + begin, n);
      } else if (narrow) {
        loops_.bf16.from_fp32(from.as<float>() + begin, to.as<Bf16>() + begin, n);
      } else {
        std::memcpy(to.data + begin * bytes, from.data + begin * bytes,
                    static_cast<size_t>(n * bytes));
      }
    });
    return absl::OkStatus();
  });
}

void CpuKernels::Add(Tensor a, Tensor b, Tensor sum, Stream& stream) {
  RunTyped(stream, a.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, a.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().add(a.as<T>() + i, b.as<T>() + i, sum.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::Accumulate(Tensor x, Tensor sum, Stream& stream) {
  if (x.type == ElementType::kInt64) {
    return Run(stream, [=, this] {
      ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
        loops_.add_integers(x.as<int64_t>() + i, sum.as<int64_t>() + i, n);
      });
      return absl::OkStatus();
    });
  }
  RunTyped(stream, x.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().accumulate(x.as<T>() + i, sum.as<float>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::AddFixedPoint(Tensor x, float largest, Tensor sum, int32_t* refused,
                               Stream& stream) {
  static_assert(kFixedPointScale == static_cast<double>(int64_t{1} << kFixedPointBits));
  Run(stream, [=, this] {
    std::atomic<bool> any = false;
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      if (loops_.add_fixed_point(x.as<float>() + i, largest, sum.as<int64_t>() + i, n)) any = true;
    });
    if (any) *refused = 1;
    return absl::OkStatus();
  });
}

void CpuKernels::FromFixedPoint(Tensor from, Tensor to, Stream& stream) {
  Run(stream, [=, this] {
    ParallelElements(threads_, from.elements(), [&](int64_t i, int64_t n) {
      loops_.from_fixed_point(from.as<int64_t>() + i, to.as<float>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::Dropout(Tensor x_NH, const DropoutMask& mask, Tensor y_NH, Stream& stream) {
  RunTyped(stream, x_NH.type, [=, this](auto element) {
    using T = decltype(element);
    const DropoutRow row(mask);
    const int64_t columns = x_NH.columns;
    ParallelRows(threads_, x_NH.rows, columns, [&](int64_t begin, int64_t end) {
      std::array<float, kDropoutPiece> piece;
      for (int64_t n = begin; n < end; ++n) {
        for (int64_t c = 0; c < columns; c += kDropoutPiece) {
          const int64_t count = std::min(kDropoutPiece, columns - c);
          const int64_t at = n * columns + c;
          loops_.Of<T>().to_fp32(x_NH.as<T>() + at, piece.data(), count);
          row.Apply(n, columns, c, {piece.data(), static_cast<size_t>(count)});
          loops_.Of<T>().from_fp32(piece.data(), y_NH.as<T>() + at, count);
        }
      }
    });
    return absl::OkStatus();
  });
}

void CpuKernels::GeluForward(Tensor x, Tensor y, Stream& stream) {
  RunTyped(stream, x.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().gelu_forward(x.as<T>() + i, y.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::GeluBackward(Tensor dy, Tensor x, Tensor dx, Stream& stream) {
  RunTyped(stream, x.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().gelu_backward(dy.as<T>() + i, x.as<T>() + i, dx.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::SwiGluForward(Tensor gate, Tensor up, Tensor y, Stream& stream) {
  RunTyped(stream, gate.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, gate.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().swiglu_forward(gate.as<T>() + i, up.as<T>() + i, y.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::SwiGluBackward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                                Stream& stream) {
  RunTyped(stream, gate.type, [=, this](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, gate.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().swiglu_backward(dy.as<T>() + i, gate.as<T>() + i, up.as<T>() + i,
                                     dgate.as<T>() + i, dup.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::Rope(Tensor x, int64_t sequence, int64_t head_size, double theta, bool inverse,
                      Stream& stream) {
  RunTyped(stream, x.type, [=, this](auto element) {
    return RunRope<decltype(element)>(x, sequence, head_size, theta, inverse);
  });
}

template <typename T>
absl::Status CpuKernels::RunRope(Tensor x, int64_t sequence, int64_t head_size, double theta,
                                 bool inverse) {
  if (head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Rope needs an even head size, not ", head_size));
  }
  const int64_t half = head_size / 2;
  std::lock_guard lock(scratch_mutex_);
  RETURN_IF_ERROR(FillRopeTable(sequence, half, theta));
  const auto* cosines = reinterpret_cast<const float*>(rope_.cosines.data());
  const auto* sines = reinterpret_cast<const float*>(rope_.sines.data());
  ParallelRows(threads_, x.rows, x.columns, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t at = n % sequence * half;
      T* const row = x.as<T>() + n * x.columns;
      for (int64_t head = 0; head < x.columns; head += head_size) {
        loops_.Of<T>().rotate(row + head, cosines + at, sines + at, half, inverse);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::FillRopeTable(int64_t sequence, int64_t half, double theta) {
  if (rope_.sequence == sequence && rope_.half == half && rope_.theta == theta) {
    return absl::OkStatus();
  }
  const int64_t bytes = sequence * half * static_cast<int64_t>(sizeof(float));
  RETURN_IF_ERROR(rope_.cosines.Reserve(bytes));
  RETURN_IF_ERROR(rope_.sines.Reserve(bytes));
  auto* cosines = reinterpret_cast<float*>(rope_.cosines.data());
  auto* sines = reinterpret_cast<float*>(rope_.sines.data());
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
    // In double: an fp32 angle is off by 0.004 at position 100,000.
    for (int64_t t = 0; t < sequence; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cosines[t * half + i] = static_cast<float>(std::cos(angle));
      sines[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  rope_.sequence = sequence;
  rope_.half = half;
  rope_.theta = theta;
  return absl::OkStatus();
}

}  // namespace esteira
