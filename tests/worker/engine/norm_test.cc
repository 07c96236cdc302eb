#include "worker/engine/norm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace esteira {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Contribution RoundTrip(const Contribution& contribution) {
  std::array<int64_t, kNormWords> words;
  words.fill(-77);
  WriteContribution(contribution, words);
  return ReadContribution(words);
}

// A model of five compute units over two replicas with two micro-batches each.
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

Plan SmallPlan() {
  Plan plan;
  plan.model.num_layers = 3;
  plan.layout.stages = 2;
  plan.layout.replicas = 2;
  plan.layout.global_batch_size = 4;
  plan.layout.micro_batch_size = 1;
  return plan;
}

// On `rank` of two stages' two replicas.
FirstPlace Place(int rank, Op op, int unit, int micro_batch) {
  return PlaceOf(SmallPlan(), rank, {.op = op, .unit = unit, .micro_batch = micro_batch});
}

TEST(ContributionTest, SurvivesTheWire) {
  Contribution contribution;
  contribution.AddSquares(std::vector<double>{1e300, 1e-300, 3}, {});
  contribution.AddLoss({.loss = 1.25, .valid_tokens = 7}, {});
  contribution.refused = 9;
  contribution.non_finite = Place(1, Op::kBackward, 2, 1);
  const Contribution read = RoundTrip(contribution);
  EXPECT_EQ(read.squares.Value(), contribution.squares.Value());
  EXPECT_EQ(read.loss.Value(), 1.25);
  EXPECT_EQ(read.valid_tokens, 7);
  EXPECT_EQ(read.refused, 9);
  EXPECT_EQ(read.non_finite.order, contribution.non_finite.order);
  EXPECT_TRUE(read.non_finite.place.found);
  EXPECT_EQ(read.non_finite.place.rank, 1);
  EXPECT_EQ(read.non_finite.place.unit, 2);
  EXPECT_EQ(read.non_finite.place.micro_batch, 1);
}

TEST(ContributionTest, FindingNothingSurvivesTheWireToo) {
  const Contribution read = RoundTrip(Contribution());
  EXPECT_FALSE(read.non_finite.place.found);
  EXPECT_EQ(read.non_finite.order, FirstPlace::kNone);
}

// Loss and what is left of the sums are finite; one rank alone knows that a part is missing.
TEST(ContributionTest, ARefusedPartMakesTheNormInfiniteOnEveryRank) {
  Contribution fine, refused;
  fine.AddSquares(std::vector<double>{4}, {});
  fine.AddLoss({.loss = 2, .valid_tokens = 2}, {});
  refused.refused = 1;
  refused.non_finite = Place(1, Op::kBackward, 3, 0);
  fine.Add(RoundTrip(refused));
  const Agreement agreement = Agree(fine, kNoLimit);
  EXPECT_EQ(agreement.loss, 1);
  EXPECT_EQ(agreement.gradient_norm, kInfinity);
  EXPECT_FALSE(agreement.update);
  EXPECT_TRUE(agreement.non_finite.found);
  EXPECT_EQ(agreement.non_finite.rank, 1);
  EXPECT_EQ(agreement.non_finite.unit, 3);
  EXPECT_EQ(agreement.non_finite.micro_batch, 0);
}

TEST(ContributionTest, OrderOfRanksChangesNoBit) {
  std::vector<Contribution> ranks(3);
  ranks[0].AddSquares(std::vector<double>{1e16, 0.1}, {});
  ranks[1].AddSquares(std::vector<double>{1, 1e-9}, {});
  ranks[2].AddSquares(std::vector<double>{0.3}, {});
  Contribution forward, backward;
  for (size_t i = 0; i < 3; ++i) forward.Add(ranks[i]);
  for (size_t i = 3; i-- > 0;) backward.Add(ranks[i]);
  EXPECT_EQ(forward.squares.Value(), backward.squares.Value());
}

TEST(ContributionTest, SquaresThatAreNotFiniteNameTheirUnit) {
  Contribution contribution;
  const FirstPlace place = Place(3, Op::kReduce, 4, -1);
  contribution.AddSquares(std::vector<double>{1, kInfinity, 2}, place);
  EXPECT_EQ(contribution.non_finite.place.rank, 3);
  EXPECT_EQ(contribution.non_finite.place.unit, 4);
  EXPECT_EQ(contribution.non_finite.place.micro_batch, -1);
  EXPECT_FALSE(contribution.squares.finite());
}

TEST(PlaceTest, ComesInTheOrderOfOneRank) {
  const std::vector<FirstPlace> in_order = {
      Place(0, Op::kForward, 0, 0),  Place(1, Op::kForward, 4, 0),
      Place(1, Op::kBackward, 4, 0), Place(0, Op::kBackwardInput, 1, 0),
      Place(0, Op::kForward, 0, 1),  Place(0, Op::kBackward, 0, 1),
      Place(2, Op::kForward, 0, 0),  Place(2, Op::kForward, 1, 1),
      Place(0, Op::kReduce, 0, -1),  Place(3, Op::kReduce, 4, -1),
      Place(0, Op::kReduce, 5, -1)};
  for (size_t i = 1; i < in_order.size(); ++i) {
    EXPECT_LT(in_order[i - 1].order, in_order[i].order) << i;
  }
  FirstPlace first;
  for (size_t i = in_order.size(); i-- > 0;) first.Consider(in_order[i]);
  EXPECT_EQ(first.order, in_order[0].order);
}

TEST(AgreeTest, LossAndNormAreMeansOverValidTokens) {
  Contribution total;
  total.AddSquares(std::vector<double>{9, 16}, {});
  total.AddLoss({.loss = 6, .valid_tokens = 2}, {});
  const Agreement agreement = Agree(total, kNoLimit);
  EXPECT_EQ(agreement.loss, 3);
  EXPECT_EQ(agreement.gradient_norm, 2.5);
  EXPECT_EQ(agreement.valid_tokens, 2);
  EXPECT_TRUE(agreement.update);
  EXPECT_FALSE(agreement.non_finite.found);
}

TEST(AgreeTest, WithoutValidTokensThereIsNoUpdate) {
  const Agreement agreement = Agree(Contribution(), kNoLimit);
  EXPECT_FALSE(agreement.update);
  EXPECT_FALSE(agreement.non_finite.found);
  EXPECT_EQ(agreement.loss, 0);
  EXPECT_EQ(agreement.gradient_norm, 0);
}

TEST(AgreeTest, ALossThatIsNotFiniteStopsTheUpdateAndNamesItsPlace) {
  Contribution total;
  total.AddLoss({.loss = kNaN, .valid_tokens = 2}, Place(1, Op::kForward, 4, 1));
  const Agreement agreement = Agree(total, kNoLimit);
  EXPECT_TRUE(std::isnan(agreement.loss));
  EXPECT_FALSE(agreement.update);
  EXPECT_TRUE(agreement.non_finite.found);
  EXPECT_EQ(agreement.non_finite.unit, 4);
  EXPECT_EQ(agreement.non_finite.micro_batch, 1);
}

TEST(AgreeTest, AFindingThatReachesNeitherLossNorNormIsNoReasonToSkip) {
  Contribution total;
  total.AddLoss({.loss = 1, .valid_tokens = 1}, {});
  total.non_finite = Place(0, Op::kForward, 0, 0);
  const Agreement agreement = Agree(total, kNoLimit);
  EXPECT_TRUE(agreement.update);
  EXPECT_FALSE(agreement.non_finite.found);
}

}  // namespace
}  // namespace esteira
