#include "common/base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace esteira {
namespace {

ExactSum SumOf(const std::vector<double>& values) {
  ExactSum sum;
  for (double value : values) sum.Add(value);
  return sum;
}

TEST(ExactSumTest, OneValueComesBackUnchanged) {
  for (double value :
       {0.0, 1.0, -1.0, 0.1, -3.75e300, 5e-324, -2.2250738585072014e-308,
        std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min() * 3}) {
    EXPECT_EQ(SumOf({value}).Value(), value);
  }
}

TEST(ExactSumTest, CancellationLosesNothing) {
  EXPECT_EQ(SumOf({1e308, 1.0, -1e308}).Value(), 1.0);
  EXPECT_EQ(SumOf({1e16, 1.0, -1e16, 1e-300, -1.0}).Value(), 1e-300);
}

TEST(ExactSumTest, RoundsToNearestEven) {
  const double epsilon = std::numeric_limits<double>::epsilon();
  EXPECT_EQ(SumOf({1.0, epsilon / 2}).Value(), 1.0);                          // tie: to even
  EXPECT_EQ(SumOf({1.0 + epsilon, epsilon / 2}).Value(), 1.0 + 2 * epsilon);  // tie: to even
  EXPECT_EQ(SumOf({1.0, epsilon / 2, 1e-200}).Value(), 1.0 + epsilon);        // just above the tie
  EXPECT_EQ(SumOf({-1.0, -epsilon / 2, -1e-200}).Value(), -1.0 - epsilon);
}

TEST(ExactSumTest, OrderAndGroupingDoNotMatter) {
  std::mt19937_64 random(7);
  std::vector<double> values(5000);
  for (double& value : values) {
    value = std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                       std::uniform_int_distribution<int>(-400, 400)(random));
  }
  const double expected = SumOf(values).Value();
  for (int trial = 0; trial < 10; ++trial) {
    std::shuffle(values.begin(), values.end(), random);
    ExactSum left, right;
    const size_t cut = random() % values.size();
    for (size_t i = 0; i < values.size(); ++i) (i < cut ? left : right).Add(values[i]);
    left.Add(right);
    EXPECT_EQ(left.Value(), expected);
  }
}

TEST(ExactSumTest, NonFiniteIsRemembered) {
  ExactSum sum = SumOf({1.0, std::numeric_limits<double>::infinity(), 2.0});
  EXPECT_FALSE(sum.finite());
  EXPECT_TRUE(std::isnan(sum.Value()));
  ExactSum total;
  total.Add(sum);
  EXPECT_FALSE(total.finite());
}

TEST(ExactSumTest, WireFormRoundTrips) {
  const ExactSum sum = SumOf({1e300, -3.5, 1e-300, 7});
  std::array<int64_t, ExactSum::kNumWords> words;
  sum.Write(words);
  EXPECT_EQ(ExactSum::Read(words).Value(), sum.Value());
}

}  // namespace
}  // namespace esteira
