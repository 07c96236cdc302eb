#include "worker/checkpoint/writer.h"

#include <gmock/gmock.h>

#include <bit>

#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/tokenizer_files.h"
#include "common/checkpoint/trainer_state.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/worker/checkpoint/group.h"

namespace esteira {
namespace {

using testing::HasSubstr;

struct LayoutCase {
  int stages;
  int replicas;
};

class WriterLayoutTest : public testing::TestWithParam<LayoutCase> {};

// Every tensor of both files, read back, is what the formula says, whatever the layout.
void ExpectTensors(FakeFileSystem& files, const JobSpec& job, const std::string& folder) {
  auto weights = TensorFolder::OpenModel(files, folder);
  ASSERT_TRUE(weights.ok()) << weights.status();
  auto optimizer = TensorFolder::OpenOptimizer(files, folder);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const std::vector<UnitSpec> units = MakeUnits(job.model);
  size_t num_parameters = 0;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    if (units[static_cast<size_t>(unit)].owner >= 0) continue;
    for (const ParameterSpec& parameter : units[static_cast<size_t>(unit)].parameters) {
      ++num_parameters;
      const char* names[] = {".master", ".exp_avg", ".exp_avg_sq"};
      for (int buffer = 0; buffer < 3; ++buffer) {
        std::vector<float> values(static_cast<size_t>(parameter.elements));
        auto location = optimizer->Find(parameter.name + names[buffer], parameter.shape);
        ASSERT_TRUE(location.ok()) << location.status();
        ASSERT_TRUE(optimizer->ReadFp32(*location, values).ok());
        for (int64_t i = 0; i < parameter.elements; ++i) {
          ASSERT_EQ(values[static_cast<size_t>(i)],
                    Group::Value(unit, buffer, parameter.offset + i, 0))
              << location->entry.name << " " << i;
        }
      }
      auto location = weights->Find(parameter.name, parameter.shape);
      ASSERT_TRUE(location.ok()) << location.status();
      ASSERT_EQ(location->entry.type, ComputeType(job.precision));
      std::vector<float> values(static_cast<size_t>(parameter.elements));
      ASSERT_TRUE(weights->ReadFp32(*location, values).ok());
      for (int64_t i = 0; i < parameter.elements; ++i) {
        const float exact = Group::Value(unit, 0, parameter.offset + i, 0);
        const float tolerance = job.precision == Precision::kBf16 ? std::abs(exact) / 256 : 0;
        ASSERT_NEAR(values[static_cast<size_t>(i)], exact, tolerance) << parameter.name << " " << i;
      }
    }
  }
  EXPECT_EQ(weights->tensors().size(), num_parameters);
  EXPECT_EQ(optimizer->tensors().size(), 3 * num_parameters);
}

TEST_P(WriterLayoutTest, TheTensorsDoNotDependOnTheLayout) {
  const auto [stages, replicas] = GetParam();
  for (const Architecture architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    for (const bool tied : {true, false}) {
      const JobSpec job = SmallJob(architecture, tied, tied ? Precision::kBf16 : Precision::kFp32);
      FakeFileSystem files;
      Group group(stages, replicas);
      for (const auto& result : group.Write(job, 200, files)) {
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(result->path, "/ckpt/step-00000200");
      }
      EXPECT_TRUE(VerifyCheckpoint(files, "/ckpt/step-00000200").ok());
      EXPECT_EQ(CheckpointsIn(files).size(), 1u);
      ExpectTensors(files, job, "/ckpt/step-00000200");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WriterLayoutTest,
                         testing::Values(LayoutCase{1, 1}, LayoutCase{1, 2}, LayoutCase{1, 3},
                                         LayoutCase{2, 1}, LayoutCase{2, 2}, LayoutCase{2, 3},
                                         LayoutCase{4, 1}, LayoutCase{4, 2}, LayoutCase{4, 3},
                                         LayoutCase{1, 7}));

// The last shard ends before its padding does, and a replica may hold nothing but padding.
TEST(WriterTest, ShardsThatEndInPaddingOrHoldNothingElse) {
  const JobSpec job = SmallJob(Architecture::kLlama, false, Precision::kFp32);
  int clipped = 0;
  int only_padding = 0;
  for (int replicas = 2; replicas <= 5; ++replicas) {
    for (const UnitSpec& unit : MakeUnits(job.model)) {
      const ShardMap shards(unit.flat_elements, replicas);
      for (int replica = 0; replica < replicas; ++replica) {
        const int64_t valid = shards.Valid(replica).size();
        if (valid == 0) ++only_padding;
        if (valid > 0 && valid < shards.shard_elements()) ++clipped;
      }
    }
    FakeFileSystem files;
    for (const auto& result : Group(2, replicas).Write(job, 1, files)) {
      ASSERT_TRUE(result.ok()) << replicas << " " << result.status();
    }
    ExpectTensors(files, job, "/ckpt/step-00000001");
  }
  EXPECT_GT(clipped, 0);
  EXPECT_GT(only_padding, 0);
}

TEST(WriterTest, AUnitLargerThanAPieceAndManyReplicas) {
  JobSpec job = SmallJob(Architecture::kLlama, true, Precision::kBf16);
  job.model.vocab_size =
      50001;  // a table of 600012 elements: three pieces, or a shard of more than one
  FakeFileSystem files;
  ASSERT_TRUE(Group(1, 2).Write(job, 1, files).front().ok());
  ExpectTensors(files, job, "/ckpt/step-00000001");
}

TEST(WriterTest, Bf16IsRoundedToNearestEven) {
  JobSpec job = SmallJob(Architecture::kLlama, true, Precision::kBf16);
  FakeFileSystem files;
  ASSERT_TRUE(Group(1, 1).Write(job, 1, files).front().ok());
  auto weights = TensorFolder::OpenModel(files, "/ckpt/step-00000001");
  std::vector<float> table(31 * 12);
  ASSERT_TRUE(weights->ReadFp32(*weights->Find("model.embed_tokens.weight", {31, 12}), table).ok());
  const int owner = TiedEmbeddingEnd(job.model);
  for (int64_t i = 0; i < 31 * 12; ++i) {
    const auto bits = std::bit_cast<uint32_t>(Group::Value(owner, 0, i, 0));
    const uint32_t below = bits & 0xffff0000U;
    const uint32_t rest = bits & 0xffffU;
    const bool up = rest > 0x8000U || (rest == 0x8000U && (bits & 0x10000U) != 0);
    ASSERT_EQ(std::bit_cast<uint32_t>(table[static_cast<size_t>(i)]),
              up ? below + 0x10000U : below);
  }
}

TEST(WriterTest, TheFilesBesideTheTensors) {
  JobSpec job = SmallJob(Architecture::kGpt2, true, Precision::kFp32);
  FakeFileSystem files;
  auto results = Group(2, 2).Write(job, 7, files);
  ASSERT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_THAT(*files.List("/ckpt/step-00000007"),
              testing::ElementsAre(
                  "config.json", "manifest.json", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                  "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
                  "tokenizer.json", "tokenizer_config.json", "trainer_state.json"));
  auto state = ParseTrainerState(*files.Read("/ckpt/step-00000007/trainer_state.json"));
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->step, 7);
  EXPECT_EQ(state->updates, 6);
  EXPECT_EQ(state->next_sample, 35);
  EXPECT_EQ(results[0]->bytes, ReadManifest(files, "/ckpt/step-00000007")->total_bytes());

  job.train = {{"tokens.bin", 1}};  // of a tokenizer that we do not know
  ASSERT_TRUE(Group(1, 1).Write(job, 8, files)[0].ok());
  EXPECT_FALSE(files.Exists("/ckpt/step-00000008/tokenizer.json"));
}

TEST(WriterTest, KeepsTheNewestOnes) {
  JobSpec job = SmallJob(Architecture::kLlama, false, Precision::kFp32);
  FakeFileSystem files;
  Group group(2, 1);
  const auto write = [&](int64_t step, int64_t keep) {
    job.checkpoints_to_keep = keep;
    auto results = group.Write(job, step, files);
    ASSERT_TRUE(results[0].ok()) << results[0].status();
    ASSERT_TRUE(results[0]->cleanup.ok());
  };
  for (int64_t step = 1; step <= 4; ++step) write(step, 0);
  EXPECT_EQ(CheckpointsIn(files).size(), 4u);
  EXPECT_EQ(*files.Read("/ckpt/latest"), "step-00000004\n");
  write(5, 3);
  EXPECT_THAT(CheckpointsIn(files),
              testing::ElementsAre("step-00000003", "step-00000004", "step-00000005"));
  // A damaged one does not count as one that is kept.
  ASSERT_TRUE(files.RemoveAll("/ckpt/step-00000005/manifest.json").ok());
  write(6, 3);
  EXPECT_THAT(CheckpointsIn(files), testing::ElementsAre("step-00000003", "step-00000004",
                                                         "step-00000005", "step-00000006"));
  // Those of later steps belong to another run.
  write(4, 1);
  EXPECT_THAT(CheckpointsIn(files),
              testing::ElementsAre("step-00000004", "step-00000005", "step-00000006"));
  EXPECT_EQ(*files.Read("/ckpt/latest"), "step-00000004\n");
}

TEST(WriterTest, ACheckpointOfTheSameStepIsReplaced) {
  const JobSpec job = SmallJob(Architecture::kLlama, false, Precision::kFp32);
  FakeFileSystem files;
  Group group(1, 2);
  ASSERT_TRUE(group.Write(job, 3, files, 1)[0].ok());
  const std::string before = *files.Read("/ckpt/step-00000003/manifest.json");
  ASSERT_TRUE(group.Write(job, 3, files, 2)[0].ok());
  EXPECT_NE(*files.Read("/ckpt/step-00000003/manifest.json"), before);
  EXPECT_TRUE(VerifyCheckpoint(files, "/ckpt/step-00000003").ok());
  EXPECT_EQ(CheckpointsIn(files).size(), 1u);
}

TEST(WriterTest, WhatIsNoCheckpointIsNotReplaced) {
  const JobSpec job = SmallJob(Architecture::kLlama, false, Precision::kFp32);
  Group group(2, 2);
  FakeFileSystem files;
  const auto expect_refused = [&](absl::string_view why) {
    for (const auto& result : group.Write(job, 3, files)) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(result.status().ToString(), HasSubstr("/ckpt/step-00000003 is there"));
      EXPECT_THAT(result.status().ToString(), HasSubstr(std::string(why)));
      EXPECT_THAT(result.status().ToString(), HasSubstr("move or remove it"));
    }
    EXPECT_EQ(CheckpointsIn(files).size(), 1u);
  };
  ASSERT_TRUE(files.CreateDirectories("/ckpt/step-00000003").ok());
  ASSERT_TRUE(WriteFileAtomically(files, "/ckpt/step-00000003/thesis.txt", "mine").ok());
  expect_refused("no manifest.json");
  EXPECT_EQ(*files.Read("/ckpt/step-00000003/thesis.txt"), "mine");
  ASSERT_TRUE(WriteFileAtomically(files, "/ckpt/step-00000003/manifest.json", "{}").ok());
  expect_refused("checkpoint /ckpt/step-00000003: ");
  EXPECT_EQ(*files.Read("/ckpt/step-00000003/thesis.txt"), "mine");

  ASSERT_TRUE(files.RemoveAll("/ckpt").ok());
  ASSERT_TRUE(group.Write(job, 3, files)[0].ok());
  ASSERT_TRUE(files.RemoveAll("/ckpt/step-00000003/config.json").ok());
  expect_refused("config.json is missing");
}

TEST(WriterTest, AStageWhoseFilesRankZeroCannotSee) {
  const JobSpec job = SmallJob(Architecture::kLlama, false, Precision::kFp32);
  FakeFileSystem shared;
  FakeFileSystem elsewhere;
  ASSERT_TRUE(elsewhere.CreateDirectories("/ckpt/.tmp-step-00000003").ok());
  for (const auto& result : Group(2, 1).Write(job, 3, {&shared, &elsewhere})) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(result.status().ToString(),
                HasSubstr("model-00002-of-00002.safetensors is missing"));
  }
  EXPECT_TRUE(shared.List("/ckpt")->empty());
}

}  // namespace
}  // namespace esteira
