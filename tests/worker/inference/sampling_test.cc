#include "worker/inference/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"

namespace esteira {
namespace {

TEST(SamplingTest, TemperatureZeroIsTheLargest) {
  const std::vector<float> logits = {0.5F, 3.0F, -1.0F, 3.0F};
  for (const double uniform : {0.0, 0.5, 0.999}) EXPECT_EQ(SampleToken(logits, 0, uniform), 1);
}

TEST(SamplingTest, FollowsTheSoftmax) {
  const std::vector<float> logits = {1.0F, 2.0F, 0.0F, -50.0F};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit) / temperature);
    std::vector<int> counts(4);
    constexpr int kDraws = 20000;
    for (uint64_t i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(SampleToken(logits, temperature, RandomUniform(1, 2, i)))];
    }
    for (size_t token = 0; token < 4; ++token) {
      const double expected = std::exp(static_cast<double>(logits[token]) / temperature) / total;
      EXPECT_NEAR(static_cast<double>(counts[token]) / kDraws, expected, 0.015);
    }
    EXPECT_EQ(counts[3], 0);
  }
}

TEST(SamplingTest, EdgesOfUniformStayInside) {
  const std::vector<float> logits = {0.0F, 0.0F, -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(SampleToken(logits, 1, 0), 0);
  EXPECT_EQ(SampleToken(logits, 1, std::nextafter(1.0, 0.0)), 1);
  EXPECT_EQ(SampleToken(std::vector<float>{5.0F}, 1, 0.7), 0);
  const std::vector<float> large = {1e30F, 3e38F};
  EXPECT_EQ(SampleToken(large, 1e-3, 0.5), 1);
}

}  // namespace
}  // namespace esteira
