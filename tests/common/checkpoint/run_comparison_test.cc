#include "common/checkpoint/run_comparison.h"

#include <gmock/gmock.h>

#include <functional>

namespace esteira {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunDescription SomeRun() {
  RunDescription run;
  run.config.model = {Architecture::kLlama, 2, 16, 2, 1, 40, 37, 64, false, 1e-5, 10000};
  run.config.precision = Precision::kBf16;
  run.state.step = 20;
  run.state.steps = 40;
  run.state.seed = 7;
  run.state.global_batch_size = 12;
  run.state.sequence_length = 32;
  run.state.micro_batch_size = 2;
  run.state.numerics = "exact";
  run.state.gradient_clip_norm = 1;
  run.state.adamw.learning_rate = 1e-3;
  run.state.schedule = {10, Decay::kCosine, 0.1, 0};
  run.state.tokenizer = "bytes";
  run.state.train = {{"/data/a.txt", 1, 100, "aa"}, {"/data/b.txt", 2, 200, "bb"}};
  return run;
}

TEST(RunComparisonTest, TheSameRunChangesNothing) {
  EXPECT_THAT(*CompareRuns(SomeRun(), SomeRun()), ElementsAre());
  RunDescription done = SomeRun();
  done.state.step = 40;
  EXPECT_TRUE(CompareRuns(done, SomeRun()).ok());
}

TEST(RunComparisonTest, HyperParametersOfTheJobWinAndAreNamed) {
  RunDescription job = SomeRun();
  job.state.steps = 80;
  job.config.precision = Precision::kFp32;
  job.state.micro_batch_size = 4;
  job.state.numerics = "fast";
  job.state.dropout = 0.5;
  job.state.gradient_clip_norm = 0.1;
  job.state.adamw = {1.0 / 3, 0.91, 0.951, 1e-9, 0.05};
  job.state.schedule = {5, Decay::kWsd, 0.2, 8};
  EXPECT_THAT(*CompareRuns(SomeRun(), job),
              ElementsAre("training.steps 40 -> 80", "training.precision bf16 -> fp32",
                          "training.micro_batch_size 2 -> 4", "training.numerics exact -> fast",
                          "training.dropout 0 -> 0.5", "training.gradient_clip_norm 1 -> 0.1",
                          "adamw.learning_rate 0.001 -> 0.33333333333333331",
                          "adamw.beta1 0.9 -> 0.91", "adamw.beta2 0.95 -> 0.951",
                          "adamw.epsilon 1e-08 -> 1e-09", "adamw.weight_decay 0.1 -> 0.05",
                          "schedule.warmup_steps 10 -> 5", "schedule.decay cosine -> wsd",
                          "schedule.final_ratio 0.1 -> 0.2", "schedule.decay_steps 0 -> 8"));
}

TEST(RunComparisonTest, AnotherRunIsRefusedWithBothValues) {
  const std::vector<std::pair<std::function<void(RunDescription&)>, std::string>> changes = {
      {[](RunDescription& run) { run.config.model.architecture = Architecture::kGpt2; },
       "model.architecture llama -> gpt2"},
      {[](RunDescription& run) { run.config.model.num_layers = 3; }, "model.num_layers 2 -> 3"},
      {[](RunDescription& run) { run.config.model.hidden_size = 18; }, "hidden_size 16 -> 18"},
      {[](RunDescription& run) { run.config.model.num_heads = 4; }, "num_heads 2 -> 4"},
      {[](RunDescription& run) { run.config.model.num_kv_heads = 2; }, "num_kv_heads 1 -> 2"},
      {[](RunDescription& run) { run.config.model.intermediate_size = 1; }, "size 40 -> 1"},
      {[](RunDescription& run) { run.config.model.vocab_size = 38; }, "vocab_size 37 -> 38"},
      {[](RunDescription& run) { run.config.model.max_sequence_length = 65; }, "length 64 -> 65"},
      {[](RunDescription& run) { run.config.model.tie_embeddings = true; }, "false -> true"},
      {[](RunDescription& run) { run.config.model.norm_epsilon = 1e-6; }, "norm_epsilon"},
      {[](RunDescription& run) { run.config.model.rope_theta = 5; }, "rope_theta 10000 -> 5"},
      {[](RunDescription& run) { run.state.seed = 8; }, "training.seed 7 -> 8"},
      {[](RunDescription& run) { run.state.global_batch_size = 6; }, "batch_size 12 -> 6"},
      {[](RunDescription& run) { run.state.sequence_length = 16; }, "sequence_length 32 -> 16"},
      {[](RunDescription& run) { run.state.tokenizer = "t.json"; }, "tokenizer bytes -> t.json"},
      {[](RunDescription& run) { run.state.train.pop_back(); }, "data.train 2 -> 1"},
      {[](RunDescription& run) { run.state.train[1].bytes = 7; }, "/data/b.txt) size 200 -> 7"},
      {[](RunDescription& run) { run.state.train[1].weight = 3; }, "weight 2 -> 3"},
      {[](RunDescription& run) { run.state.train[0].sha256 = "cc"; }, "has other bytes"}};
  for (const auto& [change, text] : changes) {
    RunDescription job = SomeRun();
    change(job);
    const absl::Status status = CompareRuns(SomeRun(), job).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(status.ToString(), HasSubstr(text));
    EXPECT_THAT(status.ToString(), HasSubstr("checkpoint.resume=never"));
  }
}

TEST(RunComparisonTest, AllFaultsAtOnceAndAMovedFileIsNone) {
  RunDescription job = SomeRun();
  job.state.train[0].path = "/elsewhere/a.txt";
  EXPECT_THAT(*CompareRuns(SomeRun(), job), ElementsAre());
  job.state.seed = 8;
  job.state.global_batch_size = 6;
  const std::string error = CompareRuns(SomeRun(), job).status().ToString();
  EXPECT_THAT(error, HasSubstr("training.seed 7 -> 8"));
  EXPECT_THAT(error, HasSubstr("training.global_batch_size 12 -> 6"));
}

TEST(RunComparisonTest, ACheckpointBeyondTheLastStep) {
  RunDescription job = SomeRun();
  job.state.steps = 19;
  EXPECT_THAT(CompareRuns(SomeRun(), job).status().ToString(),
              HasSubstr("of step 20, and training.steps is 19; raise training.steps"));
}

}  // namespace
}  // namespace esteira
