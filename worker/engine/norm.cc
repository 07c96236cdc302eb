#include "worker/engine/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace esteira {
namespace {

constexpr int64_t kNumPhases = 2;  // F, then B

}  // namespace

FirstPlace PlaceOf(const Plan& plan, int rank, const Instruction& instruction) {
  const int64_t num_units = NumComputeUnits(plan.model) + 2;  // ends of a tied table included
  const int64_t by_replica = plan.layout.num_micro_batches();
  FirstPlace first;
  first.place = {true, rank, instruction.unit, instruction.micro_batch};
  if (instruction.micro_batch < 0) {
    first.order = plan.layout.replicas * by_replica * kNumPhases * num_units + instruction.unit;
    return first;
  }
  const bool forward = instruction.op == Op::kForward;
  const int64_t micro_batch =
      plan.layout.ReplicaOfRank(rank) * by_replica + instruction.micro_batch;
  first.order = (micro_batch * kNumPhases + (forward ? 0 : 1)) * num_units +
                (forward ? instruction.unit : num_units - 1 - instruction.unit);
  return first;
}

double Contribution::AddSquares(std::span<const double> blocks, const FirstPlace& place) {
  bool finite = true;
  double sum = 0;
  for (double block : blocks) {
    squares.Add(block);
    sum += block;
    finite = finite && std::isfinite(block);
  }
  if (!finite) non_finite.Consider(place);
  return sum;
}

void Contribution::AddLoss(const LossSums& loss_sums, const FirstPlace& place) {
  loss.Add(loss_sums.loss);
  valid_tokens += loss_sums.valid_tokens;
  if (!std::isfinite(loss_sums.loss)) non_finite.Consider(place);
}

void Contribution::Add(const Contribution& other) {
  squares.Add(other.squares);
  loss.Add(other.loss);
  valid_tokens += other.valid_tokens;
  refused += other.refused;
  non_finite.Consider(other.non_finite);
}

void WriteContribution(const Contribution& contribution, std::span<int64_t, kNormWords> words) {
  constexpr size_t kSum = ExactSum::kNumWords;
  contribution.squares.Write(words.subspan<0, kSum>());
  contribution.loss.Write(words.subspan<kSum, kSum>());
  const auto rest = words.subspan<2 * kSum>();
  const NonFinite& place = contribution.non_finite.place;
  rest[0] = contribution.valid_tokens;
  rest[1] = contribution.non_finite.order;
  rest[2] = place.rank;
  rest[3] = place.unit;
  rest[4] = place.micro_batch;
  rest[5] = contribution.refused;
}

Contribution ReadContribution(std::span<const int64_t, kNormWords> words) {
  constexpr size_t kSum = ExactSum::kNumWords;
  Contribution contribution;
  contribution.squares = ExactSum::Read(words.subspan<0, kSum>());
  contribution.loss = ExactSum::Read(words.subspan<kSum, kSum>());
  const auto rest = words.subspan<2 * kSum>();
  contribution.valid_tokens = rest[0];
  contribution.non_finite.order = rest[1];
  contribution.non_finite.place = {rest[1] != FirstPlace::kNone, static_cast<int>(rest[2]),
                                   static_cast<int>(rest[3]), static_cast<int>(rest[4])};
  contribution.refused = rest[5];
  return contribution;
}

Agreement Agree(const Contribution& total, double largest_norm) {
  Agreement agreement;
  agreement.valid_tokens = total.valid_tokens;
  const double tokens = static_cast<double>(std::max<int64_t>(total.valid_tokens, 1));
  agreement.loss = total.loss.Value() / tokens;
  agreement.gradient_norm = std::sqrt(total.squares.Value()) / tokens;
  // What is left of the sums is of no meaning, so it is not shown.
  if (total.refused > 0) agreement.gradient_norm = std::numeric_limits<double>::infinity();
  const bool finite = std::isfinite(agreement.loss) && std::isfinite(agreement.gradient_norm);
  agreement.spike = finite && agreement.gradient_norm > largest_norm;
  agreement.update = finite && !agreement.spike && total.valid_tokens > 0;
  if (!finite) agreement.non_finite = total.non_finite.place;
  return agreement;
}

}  // namespace esteira
