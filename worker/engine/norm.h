#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "common/base/exact_sum.h"
#include "common/plan/plan.h"
#include "worker/engine/engine.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// The first place of a non-finite value, by what a run on one rank would have met first:
// micro-batches in order of the global batch, F before B, units as computed; reduced gradients come
// after all micro-batches.
struct FirstPlace {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t order = kNone;
  NonFinite place;

  void Consider(const FirstPlace& other) {
    if (other.order < order) *this = other;
  }
};

// The place that `instruction` stands for on `rank`; micro-batch -1: the unit's reduced gradient.
FirstPlace PlaceOf(const Plan& plan, int rank, const Instruction& instruction);

// What one rank brings to NORM, and, added up over all ranks, what they agree on. Sums are exact,
// so that neither the number of ranks nor their order can change a bit. A value.
struct Contribution {
  ExactSum squares;  // of the gradient of the sum of losses
  ExactSum loss;     // sum over valid tokens
  int64_t valid_tokens = 0;
  int64_t refused = 0;  // parts of the gradient that fixed point could not hold
  FirstPlace non_finite;

  // `blocks`: sums of squares over the blocks of this rank's shard of the unit at `place`. Returns
  // their sum.
  double AddSquares(std::span<const double> blocks, const FirstPlace& place);
  void AddLoss(const LossSums& loss_sums, const FirstPlace& place);
  void Add(const Contribution& other);
};

// The wire form.
inline constexpr size_t kNormWords = 2 * ExactSum::kNumWords + 6;
void WriteContribution(const Contribution& contribution, std::span<int64_t, kNormWords> words);
Contribution ReadContribution(std::span<const int64_t, kNormWords> words);

// What follows from the sum of all contributions: the same on every rank.
struct Agreement {
  double loss = 0;           // mean over valid tokens; 0 without any
  double gradient_norm = 0;  // of the gradient of that mean; infinite when a part was refused
  int64_t valid_tokens = 0;
  bool update = false;   // there is a finite gradient to apply, and it is not a spike
  bool spike = false;    // finite, and its norm is above what was allowed
  NonFinite non_finite;  // found only when loss or norm is not finite
};
Agreement Agree(const Contribution& total, double largest_norm);

}  // namespace esteira
