#pragma once

#include "worker/kernels/cpu/attention-inl.h"
#include "worker/kernels/cpu/fixed_point-inl.h"
#include "worker/kernels/cpu/loss-inl.h"
#include "worker/kernels/cpu/norm-inl.h"
#include "worker/kernels/cpu/optimizer-inl.h"
#include "worker/kernels/cpu/pointwise-inl.h"

namespace esteira {
namespace {

template <typename T>
constexpr LoopsOf<T> TableOf() {
  return {.to_fp32 = ToFp32<T>,
          .from_fp32 = FromFp32<T>,
          .add = AddLoop<T>,
          .accumulate = AccumulateLoop<T>,
          .column_sums = ColumnSums<T>,
          .norm_forward = NormForward<T>,
          .norm_backward_input = NormBackwardInput<T>,
          .norm_backward_weight = NormBackwardWeight<T>,
          .gelu_forward = GeluForwardLoop<T>,
          .gelu_backward = GeluBackwardLoop<T>,
          .swiglu_forward = SwiGluForwardLoop<T>,
          .swiglu_backward = SwiGluBackwardLoop<T>,
          .rotate = RotateLoop<T>,
          .attention_scratch = AttentionScratchElements,
          .attention_forward = AttentionForwardPair<T>,
          .attention_backward = AttentionBackwardPair<T>,
          .cross_entropy_row = CrossEntropyRow<T>,
          .adamw = AdamWLoop<T>,
          .any_non_finite = AnyNonFinite<T>};
}

constexpr Loops Table(const char* name) {
  return {.name = name,
          .fp32 = TableOf<float>(),
          .bf16 = TableOf<Bf16>(),
          .sum_squares_by_block = SumSquaresByBlockLoop,
          .add_fixed_point = AddFixedPointLoop,
          .from_fixed_point = FromFixedPointLoop,
          .add_integers = AddIntegersLoop};
}

}  // namespace
}  // namespace esteira
