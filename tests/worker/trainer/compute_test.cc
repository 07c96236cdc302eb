#include "worker/trainer/compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace esteira {
namespace {

using ::testing::HasSubstr;

ComputeOptions Synthetic() {
  ComputeOptions options;
  options.device = "synthetic";
  return options;
}

absl::Status With(void (*change)(ComputeOptions&)) {
  ComputeOptions options;
  change(options);
  return CheckCompute(options);
}

TEST(CheckCompute, RefusesWhatMakesNoSense) {
  EXPECT_TRUE(CheckCompute({}).ok());
  EXPECT_TRUE(CheckCompute(Synthetic()).ok());
  EXPECT_EQ(With([](auto& o) { o.device = "cuda"; }).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(With([](auto& o) { o.device = "tpu"; }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(With([](auto& o) { o.synthetic_flops = 1; }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(With([](auto& o) { o.synthetic_pass_seconds = 1; }).code(),
            absl::StatusCode::kInvalidArgument);
  for (double factor : {0.0, 0.99, -2.0, 1e7, std::numeric_limits<double>::quiet_NaN()}) {
    ComputeOptions options;
    options.slow_down = factor;
    EXPECT_THAT(CheckCompute(options).message(), HasSubstr("--slow_down")) << factor;
  }
  for (double value : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    ComputeOptions options = Synthetic();
    options.synthetic_flops = value;
    EXPECT_FALSE(CheckCompute(options).ok()) << value;
  }
  ComputeOptions both = Synthetic();
  both.synthetic_flops = both.synthetic_pass_seconds = 1;
  EXPECT_THAT(CheckCompute(both).message(), HasSubstr("give one"));
}

TEST(MeasureRates, OfASyntheticDeviceAreThoseGiven) {
  ComputeOptions options = Synthetic();
  EXPECT_EQ(MeasureRates(options)->pass_seconds, kDefaultPassSeconds);
  options.synthetic_pass_seconds = 0.5;
  options.slow_down = 3;
  EXPECT_EQ(MeasureRates(options)->pass_seconds, 1.5);
  EXPECT_EQ(MeasureRates(options)->flops_fp32, 0);
  options.synthetic_pass_seconds = 0;
  options.synthetic_flops = 3e9;
  EXPECT_EQ(MeasureRates(options)->flops_fp32, 1e9);
  EXPECT_EQ(MeasureRates(options)->flops_bf16, 1e9);
  EXPECT_EQ(MeasureRates(options)->pass_seconds, 0);
}

TEST(MeasureRates, OfTheCpuAreMeasured) {
  const absl::StatusOr<ComputeRates> rates = MeasureRates({});
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->flops_fp32, 1e8);
  EXPECT_GT(rates->flops_bf16, 1e8);
  EXPECT_GT(rates->memory_bytes_per_second, 1e8);
  EXPECT_EQ(rates->pass_seconds, 0);
  // A hundred times as slow is no noise.
  ComputeOptions slow;
  slow.slow_down = 100;
  EXPECT_LT(MeasureRates(slow)->flops_fp32, rates->flops_fp32 / 10);
}

TEST(MakeCompute, OnlyWhatComputesCanBecomeNonFinite) {
  EXPECT_TRUE(MakeCompute({})->check_finite);
  EXPECT_FALSE(MakeCompute(Synthetic())->check_finite);
  EXPECT_EQ(MakeCompute({.device = "cuda"}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace esteira
