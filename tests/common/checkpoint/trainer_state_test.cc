#include "common/checkpoint/trainer_state.h"

#include <gmock/gmock.h>

#include <limits>

namespace esteira {
namespace {

JobSpec SomeJob() {
  JobSpec job;
  job.seed = std::numeric_limits<uint64_t>::max();
  job.steps = 1000;
  job.global_batch_size = 12;
  job.sequence_length = 64;
  job.numerics = Numerics::kExact;
  job.gradient_traffic = GradientTraffic::kBf16;
  job.dropout = 0.3;
  job.gradient_clip_norm = 0.1;
  job.adamw = {1.0 / 3, 0.91, 0.951, 1e-9, 0.05};
  job.schedule = {100, Decay::kWsd, 0.01, 77};
  return job;
}

std::vector<DataIdentity> SomeData() {
  return {{"/data/a.txt", 0.1, 77, "ab"}, {"b.bin", 2, 0, ""}};
}

TEST(TrainerStateTest, RoundTripToTheBit) {
  const TrainerState state = MakeTrainerState(SomeJob(), 3, SomeData(), 30, 29);
  auto parsed = ParseTrainerState(PrintTrainerState(state));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->step, 30);
  EXPECT_EQ(parsed->updates, 29);
  EXPECT_EQ(parsed->next_sample, 360);
  EXPECT_EQ(parsed->seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parsed->schedule_steps, 1000);
  EXPECT_EQ(parsed->global_batch_size, 12);
  EXPECT_EQ(parsed->sequence_length, 64);
  EXPECT_EQ(parsed->micro_batch_size, 3);
  EXPECT_EQ(parsed->numerics, "exact");
  EXPECT_EQ(parsed->gradient_traffic, "bf16");
  EXPECT_EQ(parsed->dropout, 0.3);
  EXPECT_EQ(parsed->gradient_clip_norm, 0.1);
  EXPECT_EQ(parsed->adamw.learning_rate, 1.0 / 3);
  EXPECT_EQ(parsed->adamw.weight_decay, 0.05);
  EXPECT_EQ(parsed->schedule.decay, Decay::kWsd);
  EXPECT_EQ(parsed->schedule.decay_steps, 77);
  EXPECT_EQ(parsed->tokenizer, "bytes");
  EXPECT_EQ(parsed->train, SomeData());
  EXPECT_EQ(PrintTrainerState(*parsed), PrintTrainerState(state));
}

TEST(TrainerStateTest, StepsAreThoseThatTheScheduleSpans) {
  JobSpec job = SomeJob();
  job.schedule_steps = 800;
  EXPECT_EQ(MakeTrainerState(job, 3, {}, 30, 29).schedule_steps, 800);
}

// Whichever field is missing or of another type is named.
TEST(TrainerStateTest, EveryFieldIsAskedFor) {
  const std::string text = PrintTrainerState(MakeTrainerState(SomeJob(), 3, SomeData(), 30, 29));
  for (const char* field : {"step",
                            "optimizer_updates",
                            "next_sample",
                            "seed",
                            "steps",
                            "global_batch_size",
                            "sequence_length",
                            "micro_batch_size",
                            "numerics",
                            "gradient_traffic",
                            "dropout",
                            "gradient_clip_norm",
                            "adamw",
                            "learning_rate",
                            "beta1",
                            "beta2",
                            "epsilon",
                            "weight_decay",
                            "schedule",
                            "warmup_steps",
                            "decay",
                            "final_ratio",
                            "decay_steps",
                            "tokenizer",
                            "train",
                            "path",
                            "weight",
                            "bytes",
                            "sample_sha256"}) {
    std::string broken = text;
    const std::string quoted = "\"" + std::string(field) + "\":";
    ASSERT_NE(broken.find(quoted), std::string::npos) << field;
    broken.replace(broken.find(quoted), quoted.size(), "\"x\":");
    const auto status = ParseTrainerState(broken).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << field;
    EXPECT_THAT(status.ToString(), testing::HasSubstr("\"" + std::string(field) + "\""));
  }
  EXPECT_FALSE(ParseTrainerState("").ok());
}

}  // namespace
}  // namespace esteira
