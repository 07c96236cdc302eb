#include "coordinator/controller/merge_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace esteira {
namespace {

using ::testing::ElementsAre;

StepPart Part(double seconds, double bubble, uint64_t hash) {
  StepPart part;
  part.record.step = 7;
  part.record.loss = 2;
  part.record.tokens = 100;
  part.record.step_seconds = seconds;
  part.record.bubble_ratio = bubble;
  part.hash_part = hash;
  part.memory = MemoryUse{1, 2, 3, 4, 5};
  return part;
}

TEST(MergeStep, SlowestMeanAndSumModulo) {
  const auto merged =
      MergeStep({Part(1, 0.1, ~uint64_t{0}), Part(2, 0.3, 3)}, {4, 1000, 10, /*with_memory=*/true});
  ASSERT_TRUE(merged.ok());
  const StepRecord& record = merged->record;
  EXPECT_EQ(record.step, 7);
  EXPECT_EQ(record.epoch, 4);
  EXPECT_EQ(record.step_seconds, 2);
  EXPECT_DOUBLE_EQ(record.bubble_ratio, 0.2);
  EXPECT_EQ(record.parameter_hash, "0000000000000002");
  EXPECT_EQ(record.tokens_per_second, 50);
  EXPECT_DOUBLE_EQ(record.model_flops_utilization, 0.5);
  EXPECT_EQ(record.memory.size(), 2u);
}

TEST(MergeStep, SecondsOfAnOpAddUpAndPeaksAreTheLargest) {
  std::vector<std::optional<StepPart>> parts = {Part(1, 0, 1), Part(1, 0, 1), std::nullopt};
  const auto forward = static_cast<size_t>(Op::kForward);
  const auto reduce = static_cast<size_t>(Op::kReduce);
  parts[0]->record.op_seconds[forward] = 0.25;
  parts[1]->record.op_seconds[forward] = 0.5;
  parts[1]->record.op_seconds[reduce] = 0.125;
  parts[0]->memory = MemoryUse{10, 2, 3, 40, 5};
  parts[1]->memory = MemoryUse{9, 20, 30, 4, 6};
  EXPECT_FALSE(MergeStep(parts, {})->complete);
  EXPECT_TRUE(MergeStep({parts[0], parts[1]}, {})->complete);
  const StepRecord record = MergeStep(parts, {})->record;
  EXPECT_EQ(record.op_seconds[forward], 0.75);
  EXPECT_EQ(record.op_seconds[reduce], 0.125);
  EXPECT_EQ(record.op_seconds[static_cast<size_t>(Op::kStep)], 0);
  EXPECT_EQ(record.peak_bytes, 69);
  EXPECT_EQ(record.peak_memory, (MemoryUse{10, 20, 30, 40, 6}));
}

TEST(MergeStep, TheWholePredictionIsThere) {
  Prediction prediction;
  prediction.step_seconds = 1.5;
  prediction.bubble_ratio = 0.25;
  prediction.memory = {MemoryUse{1, 2, 3, 4, 5}, MemoryUse{2, 2, 3, 4, 5}, MemoryUse{}};
  StepContext context;
  context.prediction = &prediction;
  const StepRecord record = MergeStep({Part(1, 0, 1)}, context)->record;
  EXPECT_EQ(record.predicted_step_seconds, 1.5);
  EXPECT_EQ(record.predicted_bubble_ratio, 0.25);
  EXPECT_EQ(record.predicted_peak_bytes, 16);
  EXPECT_EQ(MergeStep({Part(1, 0, 1)}, {})->record.predicted_step_seconds, 0);
}

TEST(MergeStep, AHashWithoutEveryPartIsNone) {
  std::vector<std::optional<StepPart>> parts = {std::nullopt, Part(1, 0, 1)};
  EXPECT_EQ(MergeStep(parts, {})->record.parameter_hash, "");
  parts = {Part(1, 0, 1), Part(1, 0, 1)};
  parts[0]->hash_part.reset();
  EXPECT_EQ(MergeStep(parts, {})->record.parameter_hash, "");
}

TEST(MergeStep, TakesValidationAndCauseFromWhoeverHasThem) {
  std::vector<std::optional<StepPart>> parts = {Part(1, 0, 1), Part(1, 0, 1)};
  parts[1]->record.validation_loss = 4;
  parts[1]->record.skipped = true;
  parts[1]->record.skip_cause = "rank 1 unit 2";
  parts[0]->sample_ids = {9, 1};
  parts[1]->sample_ids = {1, 4};
  const auto merged = MergeStep(parts, {});
  EXPECT_EQ(merged->record.validation_loss, 4);
  EXPECT_TRUE(merged->record.skipped);
  EXPECT_EQ(merged->record.skip_cause, "rank 1 unit 2");
  EXPECT_THAT(merged->sample_ids, ElementsAre(9, 1, 1, 4));
}

TEST(MergeStep, DisagreementOfAnythingThatMustBeEqual) {
  const auto differs = [](void (*change)(StepRecord&)) {
    std::vector<std::optional<StepPart>> parts = {Part(1, 0, 1), Part(1, 0, 1), Part(1, 0, 1)};
    for (auto& part : parts) part->record.validation_loss = 1;
    change(parts[2]->record);
    return MergeStep(parts, {}).status().code() == absl::StatusCode::kInternal;
  };
  EXPECT_FALSE(differs([](StepRecord&) {}));
  EXPECT_TRUE(differs([](StepRecord& r) { r.loss = -2; }));
  EXPECT_TRUE(differs([](StepRecord& r) { r.gradient_norm = -0.0; })) << "to the bit";
  EXPECT_TRUE(differs([](StepRecord& r) { r.valid_tokens = 1; }));
  EXPECT_TRUE(differs([](StepRecord& r) { r.validation_loss = 2; }));
}

TEST(MergeStep, NanAgreesWithNan) {
  std::vector<std::optional<StepPart>> parts = {Part(0, 0, 1), Part(0, 0, 1)};
  parts[0]->record.loss = std::numeric_limits<double>::quiet_NaN();
  parts[1]->record.loss = -std::numeric_limits<double>::quiet_NaN();
  const auto merged = MergeStep(parts, {});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->record.tokens_per_second, 0) << "no time, no rate";
}

}  // namespace
}  // namespace esteira
