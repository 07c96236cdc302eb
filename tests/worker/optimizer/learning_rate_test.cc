#include "worker/optimizer/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace esteira {
namespace {

std::vector<double> Trace(const LearningRateSchedule& schedule, double peak, int64_t steps) {
  std::vector<double> trace;
  for (int64_t step = 1; step <= steps; ++step) {
    trace.push_back(LearningRate(schedule, peak, step, steps));
  }
  return trace;
}

void ExpectTrace(const LearningRateSchedule& schedule, const std::vector<double>& expected) {
  const std::vector<double> trace = Trace(schedule, 1.0, static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(trace[i], expected[i], 1e-12) << "step " << i + 1;
  }
}

TEST(LearningRateTest, WarmupRisesInEqualStepsToThePeak) {
  ExpectTrace({.warmup_steps = 4, .decay = Decay::kConstant}, {0.25, 0.5, 0.75, 1, 1, 1});
}

TEST(LearningRateTest, WarmupOfOneStepStartsAtThePeak) {
  ExpectTrace({.warmup_steps = 1, .decay = Decay::kConstant}, {1, 1});
}

TEST(LearningRateTest, LinearEndsAtTheFinalRatio) {
  ExpectTrace({.warmup_steps = 0, .decay = Decay::kLinear, .final_ratio = 0.2},
              {0.8, 0.6, 0.4, 0.2});
}

TEST(LearningRateTest, LinearAfterWarmup) {
  ExpectTrace({.warmup_steps = 2, .decay = Decay::kLinear, .final_ratio = 0},
              {0.5, 1, 0.75, 0.5, 0.25, 0});
}

TEST(LearningRateTest, CosineIsHalfWayInTheMiddleAndEndsAtTheFinalRatio) {
  const double quarter = 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5));
  const double three_quarters = 0.1 + 0.9 * 0.5 * (1 - std::sqrt(0.5));
  ExpectTrace({.warmup_steps = 2, .decay = Decay::kCosine, .final_ratio = 0.1},
              {0.5, 1, quarter, 0.55, three_quarters, 0.1});
}

TEST(LearningRateTest, WsdIsConstantThenLinearOverItsLastSteps) {
  ExpectTrace({.warmup_steps = 2, .decay = Decay::kWsd, .final_ratio = 0.5, .decay_steps = 2},
              {0.5, 1, 1, 1, 0.75, 0.5});
}

TEST(LearningRateTest, WsdWhoseDecayWouldBeginInTheWarmupBeginsAfterIt) {
  ExpectTrace({.warmup_steps = 2, .decay = Decay::kWsd, .final_ratio = 0, .decay_steps = 9},
              {0.5, 1, 0.5, 0});
}

TEST(LearningRateTest, WsdWithoutDecayStepsIsConstant) {
  ExpectTrace({.decay = Decay::kWsd, .final_ratio = 0.5, .decay_steps = 0}, {1, 1, 1});
}

TEST(LearningRateTest, ScalesWithThePeak) {
  const LearningRateSchedule schedule = {.warmup_steps = 3, .decay = Decay::kCosine};
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_NEAR(LearningRate(schedule, 6e-4, step, 10), 6e-4 * LearningRate(schedule, 1, step, 10),
                1e-15);
  }
}

TEST(LearningRateTest, AJobShorterThanItsWarmupOnlyRises) {
  ExpectTrace({.warmup_steps = 4, .decay = Decay::kCosine}, {0.25, 0.5});
}

TEST(LearningRateTest, AJobOfOneStepAndStepsPastTheEndHaveTheFinalRate) {
  const LearningRateSchedule schedule = {.decay = Decay::kCosine, .final_ratio = 0.1};
  EXPECT_NEAR(LearningRate(schedule, 1, 1, 1), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(schedule, 1, 50, 10), 0.1, 1e-12);
}

TEST(ClipFactorTest, BringsTheNormToTheClip) {
  EXPECT_EQ(ClipFactor(4, 1), 0.25);
  EXPECT_EQ(ClipFactor(3, 1.5) * 3, 1.5);
}

TEST(ClipFactorTest, LeavesWhatIsWithinAlone) {
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_EQ(ClipFactor(1, 1), 1);
  EXPECT_EQ(ClipFactor(0, 1), 1);
}

TEST(ClipFactorTest, ZeroMeansNoClip) { EXPECT_EQ(ClipFactor(1e9, 0), 1); }

}  // namespace
}  // namespace esteira
