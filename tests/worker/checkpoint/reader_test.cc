#include "worker/checkpoint/reader.h"

#include <gmock/gmock.h>

#include "tests/fakes/fake_file_system.h"
#include "tests/worker/checkpoint/group.h"

namespace esteira {
namespace {

using testing::HasSubstr;

class ReaderTest : public testing::Test {
 protected:
  ReaderTest() : job_(SmallJob(Architecture::kGpt2, true, Precision::kFp32)) {
    Write(9, 2, 2);
    Write(10, 1, 3);
  }
  void Write(int64_t step, int stages, int replicas) {
    Group group(stages, replicas);
    CHECK(group.Write(job_, step, files_)[0].ok());
  }
  std::string ErrorOf(const std::string& path) {
    return CheckpointReader::Open(files_, path).status().ToString();
  }

  JobSpec job_;
  FakeFileSystem files_;
};

TEST_F(ReaderTest, LoadsTheFlatBuffersOfUnits) {
  for (const char* folder : {"/ckpt/step-00000009", "/ckpt/step-00000010"}) {
    auto reader = CheckpointReader::Open(files_, folder);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->config().model, job_.model);
    EXPECT_EQ(*(*reader)->tokenizer(), "bytes");
    EXPECT_EQ((*reader)->trainer_state()->sequence_length, 8);
    const std::vector<UnitSpec> units = MakeUnits(job_.model);
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      const UnitSpec& spec = units[static_cast<size_t>(unit)];
      std::vector<float> flat(static_cast<size_t>(spec.flat_elements), 7.0F);
      ASSERT_TRUE((*reader)->LoadUnit(spec, flat).ok());
      const int owner = spec.owner >= 0 ? spec.owner : unit;
      std::vector<float> expected(flat.size(), 0.0F);
      for (const ParameterSpec& parameter : spec.parameters) {
        for (int64_t i = parameter.offset; i < parameter.offset + parameter.elements; ++i) {
          expected[static_cast<size_t>(i)] = Group::Value(owner, 0, i, 0);
        }
      }
      ASSERT_EQ(flat, expected) << "unit " << unit;
    }
  }
}

TEST_F(ReaderTest, ADirectoryOfCheckpointsMeansTheNewestWholeOne) {
  EXPECT_EQ((*CheckpointReader::Open(files_, "/ckpt"))->folder(), "/ckpt/step-00000010");
  ASSERT_TRUE(files_.RemoveAll("/ckpt/step-00000010/manifest.json").ok());
  EXPECT_EQ((*CheckpointReader::Open(files_, "/ckpt"))->folder(), "/ckpt/step-00000009");
}

TEST_F(ReaderTest, AnExportHasNoManifestAndNoTrainerState) {
  for (const char* name : {"manifest.json", "trainer_state.json", "tokenizer.json"}) {
    ASSERT_TRUE(files_.RemoveAll(std::string("/ckpt/step-00000009/") + name).ok());
  }
  auto reader = CheckpointReader::Open(files_, "/ckpt/step-00000009");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE((*reader)->trainer_state().has_value());
  EXPECT_FALSE((*reader)->tokenizer().has_value());
}

TEST_F(ReaderTest, DamageIsRefusedByName) {
  EXPECT_THAT(ErrorOf("/nowhere"), HasSubstr("/nowhere does not exist"));
  ASSERT_TRUE(files_.CreateDirectories("/empty").ok());
  EXPECT_THAT(ErrorOf("/empty"), HasSubstr("/empty is no model and holds no checkpoint"));
  const std::string folder = "/ckpt/step-00000009";
  const std::string shard = folder + "/model-00002-of-00002.safetensors";
  const std::string good = *files_.Read(shard);
  std::string bytes = good;
  bytes[bytes.size() / 2] ^= 4;
  files_.Overwrite(shard, bytes);
  EXPECT_THAT(ErrorOf(folder), HasSubstr("model-00002-of-00002.safetensors has another digest"));
  files_.Overwrite(shard, good.substr(0, good.size() - 1));
  EXPECT_THAT(ErrorOf(folder), HasSubstr("model-00002-of-00002.safetensors has"));
  ASSERT_TRUE(files_.RemoveAll(folder + "/manifest.json").ok());
  EXPECT_THAT(ErrorOf(folder), HasSubstr("model-00002-of-00002.safetensors: the tensors take"));
}

}  // namespace
}  // namespace esteira
