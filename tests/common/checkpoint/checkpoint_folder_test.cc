#include "common/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "tests/fakes/fake_file_system.h"

namespace esteira {
namespace {

using testing::HasSubstr;

class CheckpointFolderTest : public testing::Test {
 protected:
  CheckpointFolderTest() { Put("/ckpt/step-00000002/", 2); }

  // A checkpoint of two files, x and y.
  void Put(const std::string& folder, int64_t step) {
    CHECK(files_.CreateDirectories(folder.substr(0, folder.size() - 1)).ok());
    Manifest manifest{step, {}};
    for (const std::string name : {"x", "y"}) {
      const std::string bytes = name + std::string(3000000, 'z');
      CHECK(WriteFileAtomically(files_, folder + name, bytes).ok());
      manifest.files.push_back({name, static_cast<int64_t>(bytes.size()), Sha256Hex(bytes)});
    }
    CHECK(WriteFileAtomically(files_, folder + kManifestName, PrintManifest(manifest)).ok());
  }

  std::vector<int64_t> Listed() {
    std::vector<int64_t> steps;
    const auto checkpoints = *ListCheckpoints(files_, "/ckpt");
    for (const CheckpointEntry& entry : checkpoints) steps.push_back(entry.manifest.step);
    return steps;
  }

  FakeFileSystem files_;
};

TEST_F(CheckpointFolderTest, Names) {
  EXPECT_EQ(StepFolderName(200), "step-00000200");
  EXPECT_EQ(StepFolderName(1234567890), "step-1234567890");
  EXPECT_EQ(TemporaryStepFolderName(7), ".tmp-step-00000007");
  EXPECT_EQ(ShardFileName("model", 1, 4), "model-00001-of-00004.safetensors");
}

TEST_F(CheckpointFolderTest, ListsWholeCheckpointsNewestFirst) {
  Put("/ckpt/step-00000010/", 10);
  Put("/ckpt/step-00000009/", 9);
  Put("/ckpt/.tmp-step-00000011/", 11);
  Put("/ckpt/step-12/", 12);  // not our form of the name
  Put("/ckpt/step-00000013/", 13);
  ASSERT_TRUE(files_.RemoveAll("/ckpt/step-00000013/manifest.json").ok());
  Put("/ckpt/step-00000014/", 14);
  files_.Overwrite("/ckpt/step-00000014/y", "short");
  Put("/ckpt/step-00000015/", 15);
  files_.Overwrite("/ckpt/step-00000015/manifest.json", "{");
  EXPECT_THAT(Listed(), testing::ElementsAre(10, 9, 2));
  Put("/ckpt/step-00000016/", 17);  // renamed
  EXPECT_THAT(Listed(), testing::ElementsAre(10, 9, 2));
  EXPECT_TRUE(ListCheckpoints(files_, "/nowhere")->empty());

  const auto folders = *ListStepFolders(files_, "/ckpt");
  std::vector<std::string> described;
  for (const StepFolder& folder : folders) {
    described.push_back(absl::StrCat(folder.step, " ", folder.manifest.status().message()));
  }
  EXPECT_THAT(described,
              testing::ElementsAre(HasSubstr("16 checkpoint /ckpt/step-00000016 holds step 17"),
                                   HasSubstr("15 checkpoint /ckpt/step-00000015: manifest.json"),
                                   HasSubstr("14 checkpoint /ckpt/step-00000014 is damaged: y has"),
                                   HasSubstr("13 /ckpt/step-00000013 is not a checkpoint"), "10 ",
                                   "9 ", "2 "));
}

TEST_F(CheckpointFolderTest, DamageIsNamed) {
  const std::string folder = "/ckpt/step-00000002";
  EXPECT_TRUE(VerifyCheckpoint(files_, folder).ok());
  std::string bytes = *files_.Read(folder + "/y");
  bytes[2500000] ^= 1;
  files_.Overwrite(folder + "/y", bytes);
  EXPECT_TRUE(VerifySizes(files_, folder, *ReadManifest(files_, folder)).ok());
  EXPECT_THAT(VerifyCheckpoint(files_, folder).ToString(), HasSubstr("y has another digest"));
  bytes.pop_back();
  files_.Overwrite(folder + "/y", bytes);
  ASSERT_TRUE(files_.RemoveAll(folder + "/x").ok());
  const std::string error = VerifyCheckpoint(files_, folder).ToString();
  EXPECT_THAT(error, HasSubstr("x is missing"));
  EXPECT_THAT(error, HasSubstr("y has 3000000 bytes instead of 3000001"));
  EXPECT_EQ(VerifyCheckpoint(files_, folder).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(files_.RemoveAll(folder + "/manifest.json").ok());
  EXPECT_EQ(VerifyCheckpoint(files_, folder).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(VerifyCheckpoint(files_, folder).ToString(), HasSubstr("it has no manifest.json"));
}

class TensorFolderTest : public testing::Test {
 protected:
  TensorFolderTest() { CHECK(files_.CreateDirectories("/model").ok()); }

  void Put(const std::string& name, std::vector<TensorEntry> tensors, const std::string& data) {
    PlaceTensors(tensors);
    CHECK(WriteFileAtomically(files_, "/model/" + name, SafetensorsHeader(tensors) + data).ok());
  }

  FakeFileSystem files_;
};

TEST_F(TensorFolderTest, ReadsFp32AndBf16OfASingleFile) {
  const float values[] = {1.5F, -2.0F};
  const uint16_t halves[] = {0x3fc0, 0xc000, 0x0001};
  std::string data(reinterpret_cast<const char*>(values), sizeof(values));
  data.append(reinterpret_cast<const char*>(halves), sizeof(halves));
  Put("model.safetensors", {{"a", ElementType::kFp32, {2}}, {"b", ElementType::kBf16, {3, 1}}},
      data);
  auto folder = TensorFolder::OpenModel(files_, "/model");
  ASSERT_TRUE(folder.ok()) << folder.status();
  std::vector<float> read(2);
  ASSERT_TRUE(folder->ReadFp32(*folder->Find("a", {2}), read).ok());
  EXPECT_THAT(read, testing::ElementsAre(1.5F, -2.0F));
  read.resize(3);
  ASSERT_TRUE(folder->ReadFp32(*folder->Find("b", {3, 1}), read).ok());
  EXPECT_THAT(read, testing::ElementsAre(1.5F, -2.0F, 9.18354962e-41F));
  std::vector<float> part(2);
  ASSERT_TRUE(folder->ReadFp32(*folder->Find("b", {3, 1}), part, 1).ok());
  EXPECT_THAT(part, testing::ElementsAre(-2.0F, 9.18354962e-41F));
  part.resize(1);
  ASSERT_TRUE(folder->ReadFp32(*folder->Find("a", {2}), part, 1).ok());
  EXPECT_THAT(part, testing::ElementsAre(-2.0F));
  EXPECT_EQ(folder->Find("c", {2}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(folder->Find("b", {3}).status().ToString(), HasSubstr("shape [3, 1] instead of [3]"));
}

TEST_F(TensorFolderTest, AnIndexNamesItsFiles) {
  Put("one", {{"a", ElementType::kFp32, {0}}}, "");
  Put("two", {{"b", ElementType::kFp32, {0}}}, "");
  const std::string index = std::string("/model/") + kIndexName;
  ASSERT_TRUE(WriteFileAtomically(files_, index, PrintIndex({{"a", "one"}, {"b", "two"}}, 0)).ok());
  auto folder = TensorFolder::OpenModel(files_, "/model");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(folder->tensors().size(), 2u);
  files_.Overwrite(index, PrintIndex({{"a", "../one"}}, 0));
  EXPECT_FALSE(TensorFolder::OpenModel(files_, "/model").ok());
  files_.Overwrite(index, "{}");
  EXPECT_THAT(TensorFolder::OpenModel(files_, "/model").status().ToString(),
              HasSubstr("weight_map"));
  files_.Overwrite(index, PrintIndex({{"a", "missing"}}, 0));
  EXPECT_THAT(TensorFolder::OpenModel(files_, "/model").status().ToString(),
              HasSubstr("/model/missing"));
}

TEST_F(TensorFolderTest, FaultsNameTheFile) {
  EXPECT_THAT(TensorFolder::OpenModel(files_, "/model").status().ToString(),
              HasSubstr("holds no weights"));
  Put("model.safetensors", {{"a", ElementType::kFp32, {2}}}, "1234567");
  EXPECT_THAT(TensorFolder::OpenModel(files_, "/model").status().ToString(),
              HasSubstr("/model/model.safetensors: the tensors take 8 bytes, the file has 7"));
  files_.Overwrite("/model/model.safetensors", "");
  EXPECT_THAT(TensorFolder::OpenModel(files_, "/model").status().ToString(),
              HasSubstr("too short"));
}

}  // namespace
}  // namespace esteira
