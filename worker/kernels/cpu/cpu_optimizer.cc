#include <atomic>
#include <cmath>

#include "worker/kernels/cpu/run-inl.h"

namespace esteira {
namespace {

constexpr int64_t kElementsOfSquares = 64;

AdamWFactors FactorsOf(const AdamWStep& step) {
  const auto t = static_cast<double>(step.step);
  const double first = 1.0 - std::pow(step.beta1, t);
  const double second = 1.0 - std::pow(step.beta2, t);
  return {.gradient_scale = static_cast<float>(step.gradient_scale),
          .beta1 = static_cast<float>(step.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - step.beta2),
          .step_size = static_cast<float>(step.learning_rate / first),
          .second_correction = static_cast<float>(1.0 / std::sqrt(second)),
          .epsilon = static_cast<float>(step.epsilon),
          .decay = static_cast<float>(step.learning_rate * step.weight_decay)};
}

}  // namespace

std::unique_ptr<Kernels> MakeCpuKernels(int threads) {
  return std::make_unique<CpuKernels>(threads, LoopsOfThisCpu());
}

void CpuKernels::AdamW(const AdamWStep& step, Tensor gradient_sum, Tensor master, Tensor m,
                       Tensor v, Tensor parameters, Stream& stream) {
  RunTyped(stream, parameters.type, [=, this, factors = FactorsOf(step)](auto element) {
    using T = decltype(element);
    ParallelElements(threads_, master.elements(), [&](int64_t i, int64_t n) {
      loops_.Of<T>().adamw(factors, gradient_sum.as<float>() + i, master.as<float>() + i,
                           m.as<float>() + i, v.as<float>() + i, parameters.as<T>() + i, n);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::SumSquaresByBlock(Tensor x, double* blocks, Stream& stream) {
  Run(stream, [=, this] {
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      loops_.sum_squares_by_block(x.as<float>() + i, blocks + i / kElementsOfSquares,
                                  n / kElementsOfSquares);
    });
    return absl::OkStatus();
  });
}

void CpuKernels::FindNonFinite(Tensor x, int32_t* found, Stream& stream) {
  RunTyped(stream, x.type, [=, this](auto element) {
    using T = decltype(element);
    std::atomic<bool> any = false;
    ParallelElements(threads_, x.elements(), [&](int64_t i, int64_t n) {
      if (loops_.Of<T>().any_non_finite(x.as<T>() + i, n)) any = true;
    });
    if (any) *found = 1;
    return absl::OkStatus();
  });
}

}  // namespace esteira
