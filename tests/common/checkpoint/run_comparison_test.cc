#include "common/checkpoint/run_comparison.h"

#include <gmock/gmock.h>

#include <functional>

namespace esteira {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

JobSpec SomeJob() {
  JobSpec job;
  job.model = {Architecture::kLlama, 2, 16, 2, 1, 40, 37, 64, false, 1e-5, 10000};
  job.precision = Precision::kBf16;
  job.steps = 40;
  job.seed = 7;
  job.global_batch_size = 12;
  job.sequence_length = 32;
  job.numerics = Numerics::kExact;
  job.gradient_clip_norm = 1;
  job.adamw.learning_rate = 1e-3;
  job.schedule = {10, Decay::kCosine, 0.1, 0};
  return job;
}

std::vector<DataIdentity> SomeData() {
  return {{"/data/a.txt", 1, 100, "aa"}, {"/data/b.txt", 2, 200, "bb"}};
}

constexpr int64_t kMicroBatch = 2;

RunDescription RunOf(const JobSpec& job) {
  return {{job.model, job.precision}, MakeTrainerState(job, kMicroBatch, SomeData(), 20, 19)};
}

absl::StatusOr<Continuation> Continue(const RunDescription& saved, const JobSpec& job) {
  return ContinueRun(saved, job, kMicroBatch, SomeData());
}

// SomeJob with every hyper-parameter that a checkpoint holds another one.
JobSpec ChangedJob() {
  JobSpec job = SomeJob();
  job.dropout = 0.5;
  job.gradient_clip_norm = 0.1;
  job.adamw = {1.0 / 3, 0.91, 0.951, 1e-9, 0.05};
  job.schedule = {5, Decay::kWsd, 0.2, 8};
  return job;
}

std::string StateOf(const JobSpec& job) {
  return PrintTrainerState(MakeTrainerState(job, kMicroBatch, {}, 0, 0));
}

TEST(RunComparisonTest, TheSameRunChangesNothing) {
  const auto same = Continue(RunOf(SomeJob()), SomeJob());
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->changed, ElementsAre());
  EXPECT_THAT(same->kept, ElementsAre());
  EXPECT_EQ(StateOf(same->job), StateOf(SomeJob()));
  RunDescription done = RunOf(SomeJob());
  done.state.step = 40;
  EXPECT_TRUE(Continue(done, SomeJob()).ok());
}

TEST(RunComparisonTest, SavedHyperParametersHoldAndAreNamed) {
  const auto result = Continue(RunOf(SomeJob()), ChangedJob());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->changed, ElementsAre());
  const auto stays = [](const std::string& field, const char* saved, const char* job) {
    return field + " stays " + saved + " (the job file gives " + job + "; --set " + field + "=" +
           job + " would change it)";
  };
  EXPECT_THAT(
      result->kept,
      ElementsAre(stays("training.dropout", "0", "0.5"),
                  stays("training.gradient_clip_norm", "1", "0.1"),
                  stays("training.optimizer.adamw.learning_rate", "0.001", "0.33333333333333331"),
                  stays("training.optimizer.adamw.beta1", "0.9", "0.91"),
                  stays("training.optimizer.adamw.beta2", "0.95", "0.951"),
                  stays("training.optimizer.adamw.epsilon", "1e-08", "1e-09"),
                  stays("training.optimizer.adamw.weight_decay", "0.1", "0.05"),
                  stays("training.schedule.warmup_steps", "10", "5"),
                  stays("training.schedule.decay", "cosine", "wsd"),
                  stays("training.schedule.final_ratio", "0.1", "0.2")));
  EXPECT_EQ(StateOf(result->job), StateOf(SomeJob()));
}

TEST(RunComparisonTest, WhatIsSetHoldsAndIsNamed) {
  JobSpec job = ChangedJob();
  job.set_fields = {"training.dropout", "training.gradient_clip_norm", "training.optimizer",
                    "training.schedule"};
  const auto result = Continue(RunOf(SomeJob()), job);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->kept, ElementsAre());
  EXPECT_THAT(
      result->changed,
      ElementsAre("training.dropout 0 -> 0.5 (--set)",
                  "training.gradient_clip_norm 1 -> 0.1 (--set)",
                  "training.optimizer.adamw.learning_rate 0.001 -> 0.33333333333333331 (--set)",
                  "training.optimizer.adamw.beta1 0.9 -> 0.91 (--set)",
                  "training.optimizer.adamw.beta2 0.95 -> 0.951 (--set)",
                  "training.optimizer.adamw.epsilon 1e-08 -> 1e-09 (--set)",
                  "training.optimizer.adamw.weight_decay 0.1 -> 0.05 (--set)",
                  "training.schedule.warmup_steps 10 -> 5 (--set)",
                  "training.schedule.decay cosine -> wsd (--set)",
                  "training.schedule.final_ratio 0.1 -> 0.2 (--set)"));
  EXPECT_EQ(StateOf(result->job), StateOf(job));
}

// Each field is decided by its own path, not by another's that begins alike.
TEST(RunComparisonTest, OneFieldThatIsSetChangesNoOther) {
  JobSpec job = ChangedJob();
  job.set_fields = {"training.optimizer.adamw.beta2", "training.drop",
                    "training.schedule.decay_steps"};
  const auto result = Continue(RunOf(SomeJob()), job);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->changed, ElementsAre("training.optimizer.adamw.beta2 0.95 -> 0.951 (--set)"));
  EXPECT_THAT(result->kept, SizeIs(9));
  JobSpec expected = SomeJob();
  expected.adamw.beta2 = 0.951;
  EXPECT_EQ(StateOf(result->job), StateOf(expected));
}

TEST(RunComparisonTest, TheStepsOfWsdsDecay) {
  JobSpec saved = SomeJob();
  saved.schedule = {10, Decay::kWsd, 0.1, 4};
  JobSpec job = saved;
  job.schedule.decay_steps = 8;
  auto result = Continue(RunOf(saved), job);
  EXPECT_EQ(result->job.schedule.decay_steps, 4);
  EXPECT_THAT(result->kept, ElementsAre(HasSubstr("training.schedule.decay_steps stays 4")));
  job.set_fields = {"training.schedule.decay_steps"};
  result = Continue(RunOf(saved), job);
  EXPECT_EQ(result->job.schedule.decay_steps, 8);
  EXPECT_THAT(result->changed, ElementsAre("training.schedule.decay_steps 4 -> 8 (--set)"));
  // They come with wsd, and go with it.
  job.set_fields = {"training.schedule.decay"};
  EXPECT_EQ(Continue(RunOf(SomeJob()), job)->job.schedule.decay_steps, 8);
  job.schedule = {10, Decay::kLinear, 0.1, 0};
  EXPECT_EQ(Continue(RunOf(saved), job)->job.schedule.decay_steps, 0);
}

// How far to go is the job's own; what the learning rate decays over is the saved run's.
TEST(RunComparisonTest, MoreStepsDoNotStretchTheScheduleUnlessSet) {
  JobSpec job = SomeJob();
  job.steps = 80;
  auto result = Continue(RunOf(SomeJob()), job);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->job.steps, 80);
  EXPECT_EQ(result->job.schedule_steps, 40);
  EXPECT_THAT(result->kept,
              ElementsAre("training.steps stays 40 for the learning rate (the job goes on to step "
                          "80; --set training.steps=80 would make its decay end there)"));
  // The next checkpoint of that job says the same again.
  EXPECT_EQ(RunOf(result->job).state.schedule_steps, 40);
  const auto again = Continue(RunOf(result->job), job);
  EXPECT_EQ(again->job.schedule_steps, 40);
  EXPECT_EQ(again->kept, result->kept);

  job.set_fields = {"training.steps"};
  result = Continue(RunOf(SomeJob()), job);
  EXPECT_EQ(result->job.schedule_steps.value_or(result->job.steps), 80);
  EXPECT_THAT(result->changed, ElementsAre("training.steps 40 -> 80 (--set)"));
  EXPECT_THAT(result->kept, ElementsAre());
}

TEST(RunComparisonTest, StepsAreNoNewsWhereNothingDecays) {
  JobSpec saved = SomeJob();
  saved.schedule.decay = Decay::kConstant;
  JobSpec job = saved;
  job.steps = 80;
  const auto result = Continue(RunOf(saved), job);
  EXPECT_THAT(result->kept, ElementsAre());
  EXPECT_THAT(result->changed, ElementsAre());
  EXPECT_EQ(result->job.steps, 80);
}

// The plan is made before any checkpoint is seen, so what it depends on is the job's, or nobody's.
TEST(RunComparisonTest, PrecisionAndNumericsChangeOnlyWhenSet) {
  JobSpec job = SomeJob();
  job.precision = Precision::kFp32;
  job.numerics = Numerics::kFast;
  const absl::Status status = Continue(RunOf(SomeJob()), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(),
              HasSubstr("training.precision is bf16, and fp32 in the job file; "
                        "write bf16 there, or say --set training.precision=fp32"));
  EXPECT_THAT(status.ToString(), HasSubstr("--set training.numerics=fast"));
  job.set_fields = {"training.numerics"};
  EXPECT_FALSE(Continue(RunOf(SomeJob()), job).ok());
  job.set_fields = {"training.numerics", "training.precision"};
  EXPECT_THAT(Continue(RunOf(SomeJob()), job)->changed,
              ElementsAre("training.precision bf16 -> fp32 (--set)",
                          "training.numerics exact -> fast (--set)"));
}

TEST(RunComparisonTest, GradientTrafficChangesOnlyWhenItIsSet) {
  JobSpec saved = SomeJob(), job = SomeJob();
  saved.numerics = job.numerics = Numerics::kFast;
  job.gradient_traffic = GradientTraffic::kBf16;
  EXPECT_THAT(Continue(RunOf(saved), job).status().ToString(),
              HasSubstr("parallelism.gradient_traffic is full, and bf16 in the job file"));
  job.set_fields = {"parallelism.gradient_traffic"};
  EXPECT_THAT(Continue(RunOf(saved), job)->changed,
              ElementsAre("parallelism.gradient_traffic full -> bf16 (--set)"));
}

TEST(RunComparisonTest, TheMicroBatchIsTheLayoutsAndIsNamed) {
  EXPECT_THAT(ContinueRun(RunOf(SomeJob()), SomeJob(), 4, SomeData())->changed,
              ElementsAre("training.micro_batch_size 2 -> 4"));
}

TEST(RunComparisonTest, AnotherRunIsRefusedWithBothValues) {
  const std::vector<std::pair<std::function<void(JobSpec&)>, std::string>> changes = {
      {[](JobSpec& job) { job.model.architecture = Architecture::kGpt2; },
       "model.architecture llama -> gpt2"},
      {[](JobSpec& job) { job.model.num_layers = 3; }, "model.num_layers 2 -> 3"},
      {[](JobSpec& job) { job.model.hidden_size = 18; }, "hidden_size 16 -> 18"},
      {[](JobSpec& job) { job.model.num_heads = 4; }, "num_heads 2 -> 4"},
      {[](JobSpec& job) { job.model.num_kv_heads = 2; }, "num_kv_heads 1 -> 2"},
      {[](JobSpec& job) { job.model.intermediate_size = 1; }, "size 40 -> 1"},
      {[](JobSpec& job) { job.model.vocab_size = 38; }, "vocab_size 37 -> 38"},
      {[](JobSpec& job) { job.model.max_sequence_length = 65; }, "length 64 -> 65"},
      {[](JobSpec& job) { job.model.tie_embeddings = true; }, "false -> true"},
      {[](JobSpec& job) { job.model.norm_epsilon = 1e-6; }, "norm_epsilon"},
      {[](JobSpec& job) { job.model.rope_theta = 5; }, "rope_theta 10000 -> 5"},
      {[](JobSpec& job) { job.seed = 8; }, "training.seed 7 -> 8"},
      {[](JobSpec& job) { job.global_batch_size = 6; }, "batch_size 12 -> 6"},
      {[](JobSpec& job) { job.sequence_length = 16; }, "sequence_length 32 -> 16"},
      {[](JobSpec& job) { job.tokenizer = "t.json"; }, "tokenizer bytes -> t.json"}};
  for (const auto& [change, text] : changes) {
    JobSpec job = SomeJob();
    change(job);
    job.set_fields = {"model", "data", "training"};  // --set is no way around it
    const absl::Status status = Continue(RunOf(SomeJob()), job).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(status.ToString(), HasSubstr(text));
    EXPECT_THAT(status.ToString(), HasSubstr("checkpoint.resume=never"));
  }
}

TEST(RunComparisonTest, OtherDataAreRefusedAndAMovedFileIsNot) {
  const std::vector<std::pair<std::function<void(std::vector<DataIdentity>&)>, std::string>>
      changes = {{[](auto& data) { data.pop_back(); }, "data.train 2 -> 1"},
                 {[](auto& data) { data[1].bytes = 7; }, "/data/b.txt) size 200 -> 7"},
                 {[](auto& data) { data[1].weight = 3; }, "weight 2 -> 3"},
                 {[](auto& data) { data[0].sha256 = "cc"; }, "has other bytes"}};
  for (const auto& [change, text] : changes) {
    std::vector<DataIdentity> data = SomeData();
    change(data);
    const absl::Status status =
        ContinueRun(RunOf(SomeJob()), SomeJob(), kMicroBatch, data).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(status.ToString(), HasSubstr(text));
  }
  std::vector<DataIdentity> moved = SomeData();
  moved[0].path = "/elsewhere/a.txt";
  EXPECT_THAT(ContinueRun(RunOf(SomeJob()), SomeJob(), kMicroBatch, moved)->changed, ElementsAre());
}

TEST(RunComparisonTest, AllFaultsAtOnce) {
  JobSpec job = SomeJob();
  job.seed = 8;
  job.global_batch_size = 6;
  const std::string error = Continue(RunOf(SomeJob()), job).status().ToString();
  EXPECT_THAT(error, HasSubstr("training.seed 7 -> 8"));
  EXPECT_THAT(error, HasSubstr("training.global_batch_size 12 -> 6"));
}

TEST(RunComparisonTest, ACheckpointBeyondTheLastStep) {
  JobSpec job = SomeJob();
  job.steps = 19;
  EXPECT_THAT(Continue(RunOf(SomeJob()), job).status().ToString(),
              HasSubstr("of step 20, and training.steps is 19; raise training.steps"));
}

}  // namespace
}  // namespace esteira
