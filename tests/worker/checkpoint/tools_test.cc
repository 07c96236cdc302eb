// The tools of common/checkpoint on checkpoints as they are written.

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>

#include "common/checkpoint/comparison.h"
#include "common/checkpoint/export.h"
#include "common/checkpoint/model_config.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/worker/checkpoint/group.h"
#include "worker/checkpoint/reader.h"

namespace esteira {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kA[] = "/ckpt/step-00000001";
constexpr char kB[] = "/other/step-00000001";

class ComparisonTest : public testing::Test {
 protected:
  ComparisonTest() : job_(SmallJob(Architecture::kGpt2, true, Precision::kFp32)) {
    CHECK(Group(2, 3).Write(job_, 1, files_)[0].ok());
    JobSpec other = job_;
    other.checkpoint_directory = "/other";
    CHECK(Group(1, 1).Write(other, 1, files_)[0].ok());
  }

  // Those that are not equal.
  std::vector<TensorComparison> Different(bool weights_only = false, const std::string& b = kB) {
    auto results = CompareCheckpoints(files_, kA, b, weights_only);
    CHECK(results.ok());
    num_compared_ = results->size();
    std::erase_if(*results, [](const TensorComparison& tensor) {
      return tensor.verdict == TensorVerdict::kEqual;
    });
    return *results;
  }

  // Changes element `index` of a tensor of the second checkpoint.
  void Set(const std::string& name, int64_t index, float value) {
    const auto tensors = *TensorFolder::OpenModel(files_, kB);
    const TensorFolder::Location& location = tensors.tensors().at(name);
    const std::string path = std::string(kB) + "/" + location.file;
    std::string bytes = *files_.Read(path);
    std::memcpy(bytes.data() + location.offset + index * 4, &value, 4);
    files_.Overwrite(path, bytes);
  }
  float Get(const std::string& name, int64_t index) {
    const auto tensors = *TensorFolder::OpenModel(files_, kB);
    float value = 0;
    CHECK(tensors.ReadFp32(tensors.tensors().at(name), std::span<float>(&value, 1), index).ok());
    return value;
  }

  JobSpec job_;
  FakeFileSystem files_;
  size_t num_compared_ = 0;
};

TEST_F(ComparisonTest, LayoutsAreNoDifference) {
  EXPECT_TRUE(Different().empty());
  const size_t all = num_compared_;
  EXPECT_TRUE(Different(/*weights_only=*/true).empty());
  EXPECT_EQ(all, 4 * num_compared_);
  EXPECT_TRUE(Different(false, "/other").empty());  // the newest in it
}

TEST_F(ComparisonTest, ValuesAreCountedAndMeasured) {
  const std::string name = "transformer.h.1.ln_1.weight";
  const std::string table = "transformer.wte.weight";
  Set(name, 0, Get(name, 0) + 0.5F);
  Set(name, 11, Get(name, 11) - 2.0F);
  Set(table, 7, std::numeric_limits<float>::quiet_NaN());
  Set(table, 8, 100);
  const auto different = Different();
  ASSERT_EQ(different.size(), 2u);
  EXPECT_EQ(different[0].name, name);
  EXPECT_EQ(different[0].verdict, TensorVerdict::kValues);
  EXPECT_EQ(different[0].elements, 12);
  EXPECT_EQ(different[0].num_different, 2);
  EXPECT_NEAR(different[0].max_difference, 2.0, 1e-6);
  EXPECT_EQ(different[1].name, table);
  EXPECT_EQ(different[1].num_different, 2);
  EXPECT_TRUE(std::isnan(different[1].max_difference));
}

TEST_F(ComparisonTest, TheSignOfZeroIsADifferenceOfBits) {
  const std::string name = "transformer.ln_f.bias";
  Set(name, 3, 0.0F);
  ASSERT_EQ(Different().size(), 1u);
  const auto zero = *CompareCheckpoints(files_, kB, kB, false);
  for (const TensorComparison& tensor : zero) EXPECT_EQ(tensor.verdict, TensorVerdict::kEqual);
}

TEST_F(ComparisonTest, ShapesTypesAndMissingTensors) {
  JobSpec wide = job_;
  wide.checkpoint_directory = "/wide";
  wide.model.vocab_size = 33;
  wide.model.num_layers = 2;
  ASSERT_TRUE(Group(1, 1).Write(wide, 1, files_)[0].ok());
  int shapes = 0, missing = 0;
  for (const TensorComparison& tensor : Different(true, "/wide")) {
    shapes += tensor.verdict == TensorVerdict::kShape ? 1 : 0;
    missing += tensor.verdict == TensorVerdict::kOnlyInA ? 1 : 0;
  }
  EXPECT_EQ(shapes, 1);  // the table
  EXPECT_GT(missing, 3);
  const auto back = *CompareCheckpoints(files_, "/wide", kA, true);
  EXPECT_EQ(std::count_if(back.begin(), back.end(),
                          [](const TensorComparison& tensor) {
                            return tensor.verdict == TensorVerdict::kOnlyInB;
                          }),
            missing);
  ASSERT_TRUE(ExportWeights(files_, kA, "/half", {Precision::kBf16}).ok());
  ASSERT_TRUE(ExportWeights(files_, "/half", "/widened", {Precision::kFp32}).ok());
  const auto types = *CompareCheckpoints(files_, "/half", "/widened", false);
  for (const TensorComparison& tensor : types) {
    EXPECT_EQ(tensor.verdict, TensorVerdict::kType) << tensor.name;
  }
}

class ExportTest : public testing::TestWithParam<std::tuple<Architecture, bool, Precision>> {
 protected:
  ExportTest()
      : job_(SmallJob(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()))) {
    CHECK(Group(2, 2).Write(job_, 1, files_)[0].ok());
  }

  JobSpec job_;
  FakeFileSystem files_;
};

// What a reader finds in an export: the masters, rounded once when asked.
TEST_P(ExportTest, HoldsTheMasters) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const std::string out = std::string("/out-") + PrecisionName(precision);
    const auto result = ExportWeights(files_, kA, out, {precision});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->num_files, 1);
    EXPECT_EQ(result->bytes, CountParameters(job_.model) * BytesOf(precision));
    EXPECT_THAT(*files_.List(out), ElementsAre("config.json", "model.safetensors", "tokenizer.json",
                                               "tokenizer_config.json"));
    const auto reader = CheckpointReader::Open(files_, out);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->config(), (ModelConfig{job_.model, precision}));
    const std::vector<UnitSpec> units = MakeUnits(job_.model);
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      const UnitSpec& spec = units[static_cast<size_t>(unit)];
      std::vector<float> flat(static_cast<size_t>(spec.flat_elements));
      ASSERT_TRUE((*reader)->LoadUnit(spec, flat).ok());
      for (const ParameterSpec& parameter : spec.parameters) {
        for (int64_t i = parameter.offset; i < parameter.offset + parameter.elements; ++i) {
          const float exact = Group::Value(spec.owner >= 0 ? spec.owner : unit, 0, i, 0);
          const float held = flat[static_cast<size_t>(i)];
          if (precision == Precision::kFp32) {
            ASSERT_EQ(std::bit_cast<uint32_t>(held), std::bit_cast<uint32_t>(exact));
          } else {
            ASSERT_NEAR(held, exact, std::abs(exact) / 256);
          }
        }
      }
    }
  }
}

TEST_P(ExportTest, ShardsBySizeAndHoldsTheSame) {
  ASSERT_TRUE(ExportWeights(files_, kA, "/whole", {}).ok());
  int most = 0;
  for (const int64_t size : {1, 100, 1000, 4000}) {
    const std::string out = "/sharded-" + std::to_string(size);
    const auto result = ExportWeights(files_, "/ckpt", out + "/", {std::nullopt, size});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->from, kA);
    EXPECT_GT(result->num_files, 1);
    most = std::max(most, result->num_files);
    EXPECT_TRUE(files_.Exists(out + "/" + kIndexName));
    const auto tensors = *CompareCheckpoints(files_, "/whole", out, false);
    for (const TensorComparison& tensor : tensors) {
      EXPECT_EQ(tensor.verdict, TensorVerdict::kEqual) << tensor.name;
    }
    for (int i = 1; i <= result->num_files; ++i) {
      const auto header =
          *ReadSafetensorsHeader(files_, out + "/" + ShardFileName("model", i, result->num_files));
      EXPECT_TRUE(header.tensors.size() == 1 || header.tensors.back().end <= size);
    }
  }
  EXPECT_EQ(static_cast<size_t>(most), TensorFolder::OpenModel(files_, kA)->tensors().size());
}

TEST_P(ExportTest, NothingIsWrittenOver) {
  ASSERT_TRUE(files_.CreateDirectories("/out").ok());
  ASSERT_TRUE(ExportWeights(files_, kA, "/out", {}).ok());  // an empty folder is free
  const auto again = ExportWeights(files_, kA, "/out", {});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(again.status().ToString(), HasSubstr("/out is there and holds config.json and more"));
  EXPECT_EQ(ExportWeights(files_, "/nowhere", "/x", {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(files_.Exists("/x"));
}

TEST_P(ExportTest, ADamagedCheckpointIsNotExported) {
  const std::string path = std::string(kA) + "/optimizer-00001-of-00002.safetensors";
  std::string bytes = *files_.Read(path);
  bytes.back() ^= 1;
  files_.Overwrite(path, bytes);
  EXPECT_EQ(ExportWeights(files_, kA, "/out", {}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(files_.Exists("/out"));
}

TEST_P(ExportTest, AFullDiskLeavesNothing) {
  for (int64_t room = 0; room < 10'000; room += 1'501) {
    FaultyFileSystem faulty(files_);
    faulty.FailAfterBytes(room);
    EXPECT_EQ(ExportWeights(faulty, kA, "/out/model", {}).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(files_.Exists("/out/model"));
    EXPECT_FALSE(files_.Exists("/out/.tmp-export-model"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExportTest,
    testing::Combine(testing::Values(Architecture::kGpt2, Architecture::kLlama), testing::Bool(),
                     testing::Values(Precision::kFp32, Precision::kBf16)));

}  // namespace
}  // namespace esteira
