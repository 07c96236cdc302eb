#pragma once

#include "worker/kernels/cpu/vector-inl.h"

namespace esteira {
namespace {

template <typename T>
void AdamWLoop(const AdamWFactors& f, const float* gradient_sum, float* master, float* m, float* v,
               T* parameters, int64_t n) {
  ForEachStreamed(0, n, [=](auto load, auto store) {
    const V g = load(static_cast<const float*>(gradient_sum)) * f.gradient_scale;
    const V new_m = load(m) * f.beta1 + g * f.one_minus_beta1;
    const V new_v = load(v) * f.beta2 + g * g * f.one_minus_beta2;
    const V old = load(master);
    const V update = f.step_size * new_m / (Sqrt(new_v) * f.second_correction + f.epsilon);
    const V value = old - f.decay * old - update;
    store(m, new_m);
    store(v, new_v);
    store(master, value);
    store(parameters, value);
  });
}

constexpr int64_t kElementsOfBlock = 64;

// Eight double lanes, each over the elements i, i + 8, ..., then a tree. A square of an fp32 is
// exact in double, so the result is the same bits on every CPU.
void SumSquaresByBlockLoop(const float* x, double* blocks, int64_t num_blocks) {
  constexpr int64_t kSums = 8;
  using Values = float __attribute__((vector_size(kSums * sizeof(float))));
  using Sums = double __attribute__((vector_size(kSums * sizeof(double))));
  for (int64_t b = 0; b < num_blocks; ++b) {
    const float* block = x + b * kElementsOfBlock;
    Sums s{};
    for (int64_t i = 0; i < kElementsOfBlock; i += kSums) {
      Values values;
      __builtin_memcpy(&values, block + i, sizeof(values));
      AskAhead(block + i);
      const Sums wide = __builtin_convertvector(values, Sums);
      s += wide * wide;
    }
    blocks[b] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
}

}  // namespace
}  // namespace esteira
