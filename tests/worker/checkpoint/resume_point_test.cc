#include "worker/checkpoint/resume_point.h"

#include <gmock/gmock.h>

#include <mutex>

#include "common/checkpoint/checkpoint_folder.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/worker/checkpoint/group.h"
#include "worker/checkpoint/state_source.h"

namespace esteira {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Found = absl::StatusOr<std::optional<ResumePoint>>;

class ResumePointTest : public testing::TestWithParam<int> {
 protected:
  ResumePointTest() : job_(SmallJob(Architecture::kGpt2, true, Precision::kFp32)) {
    job_.steps = 50;
    Group group(2, 2);
    for (int64_t step : {10, 20, 30}) CHECK(group.Write(job_, step, files_)[0].ok());
  }

  // What all ranks found: the same.
  Found Find(const JobSpec& job) {
    auto transports = MakeInprocTransports(GetParam());
    std::vector<Found> found(static_cast<size_t>(GetParam()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<size_t>(rank);
        found[index] =
            FindResumePoint(job, kMicroBatch, {}, files_, *transports[index], absl::Seconds(30));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Found& other : found) {
      EXPECT_EQ(other.status().code(), found[0].status().code()) << other.status();
      if (!other.ok() || !found[0].ok()) continue;
      EXPECT_EQ(other->has_value(), found[0]->has_value());
      if (!other->has_value()) continue;
      EXPECT_EQ((*other)->folder, (*found[0])->folder);
      EXPECT_EQ((*other)->state.updates, (*found[0])->state.updates);
      EXPECT_EQ((*other)->continuation.job.adamw.learning_rate,
                (*found[0])->continuation.job.adamw.learning_rate);
    }
    return found[0];
  }

  void Flip(const std::string& path) {
    std::string bytes = *files_.Read(path);
    bytes[bytes.size() / 2] ^= 1;
    files_.Overwrite(path, bytes);
  }

  JobSpec job_;
  FakeFileSystem files_;
};

TEST_P(ResumePointTest, TakesTheNewest) {
  const Found found = Find(job_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->folder, "/ckpt/step-00000030");
  EXPECT_EQ((*found)->state.step, 30);
  EXPECT_EQ((*found)->state.updates, 29);
  EXPECT_THAT((*found)->skipped, ElementsAre());
  EXPECT_EQ(DescribeResume(**found), "continues from step 30 (/ckpt/step-00000030)");
}

TEST_P(ResumePointTest, NoCheckpointIsNoError) {
  job_.checkpoint_directory = "/nowhere";
  EXPECT_FALSE(Find(job_)->has_value());
  ASSERT_TRUE(files_.CreateDirectories("/nowhere").ok());
  EXPECT_FALSE(Find(job_)->has_value());
}

// Whichever byte of whichever file is wrong, and whichever rank reads it.
TEST_P(ResumePointTest, AFlippedByteInAnyFileIsPassedOver) {
  const auto manifest = *ReadManifest(files_, "/ckpt/step-00000030");
  for (const ManifestFile& file : manifest.files) {
    const std::string path = "/ckpt/step-00000030/" + file.name;
    const std::string good = *files_.Read(path);
    Flip(path);
    const Found found = Find(job_);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)->folder, "/ckpt/step-00000020");
    ASSERT_EQ((*found)->skipped.size(), 1u);
    EXPECT_THAT((*found)->skipped[0], HasSubstr("step-00000030: "));
    EXPECT_THAT((*found)->skipped[0], HasSubstr(file.name + " has another digest"));
    EXPECT_THAT((*found)->skipped[0], HasSubstr("now damaged-step-00000030"));
    EXPECT_THAT(DescribeResume(**found), HasSubstr("skipped because damaged: step-00000030"));
    ASSERT_TRUE(files_.Rename("/ckpt/damaged-step-00000030", "/ckpt/step-00000030").ok());
    files_.Overwrite(path, good);
  }
}

TEST_P(ResumePointTest, MissingAndTruncatedFilesAndManifestsArePassedOver) {
  ASSERT_TRUE(files_.RemoveAll("/ckpt/step-00000030/manifest.json").ok());
  files_.Overwrite("/ckpt/step-00000020/optimizer-00002-of-00002.safetensors", "short");
  const Found found = Find(job_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->folder, "/ckpt/step-00000010");
  ASSERT_EQ((*found)->skipped.size(), 2u);
  EXPECT_THAT((*found)->skipped[0], HasSubstr("no manifest.json"));
  EXPECT_THAT((*found)->skipped[1], HasSubstr("has 5 bytes instead of"));
  EXPECT_THAT(CheckpointsIn(files_),
              ElementsAre("damaged-step-00000020", "damaged-step-00000030", "step-00000010"));
  // The run can write these steps again.
  EXPECT_TRUE(Group(1, 1).Write(job_, 20, files_)[0].ok());
  ASSERT_TRUE(files_.RemoveAll("/ckpt/step-00000020/manifest.json").ok());
  ASSERT_TRUE(Find(job_).ok());
  EXPECT_THAT(CheckpointsIn(files_), ElementsAre("damaged-step-00000020", "damaged-step-00000020+",
                                                 "damaged-step-00000030", "step-00000010"));
}

TEST_P(ResumePointTest, NothingGoodIsAnErrorAndLeavesAllWhereItIs) {
  ASSERT_TRUE(files_.RemoveAll("/ckpt/step-00000030/manifest.json").ok());
  Flip("/ckpt/step-00000020/config.json");
  Flip("/ckpt/step-00000010/model-00001-of-00002.safetensors");
  const Found found = Find(job_);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
  for (const char* text :
       {"/ckpt", "step-00000030", "step-00000020", "step-00000010", "nothing was started",
        "config.json has another digest", "checkpoint.resume=never"}) {
    EXPECT_THAT(found.status().ToString(), HasSubstr(text));
  }
  EXPECT_THAT(CheckpointsIn(files_),
              ElementsAre("step-00000010", "step-00000020", "step-00000030"));
}

TEST_P(ResumePointTest, AReplacementThatWasInterruptedIsUndone) {
  ASSERT_TRUE(files_.Rename("/ckpt/step-00000030", "/ckpt/.replaced-step-00000030").ok());
  EXPECT_EQ((*Find(job_))->folder, "/ckpt/step-00000030");
}

TEST_P(ResumePointTest, AnotherRunIsRefusedAndChangesAreNamed) {
  job_.adamw.learning_rate = 0.25;
  job_.dropout = 0.5;
  job_.set_fields = {"training.dropout"};
  const Found changed = Find(job_);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(DescribeResume(**changed),
            "continues from step 30 (/ckpt/step-00000030); changed on resume: training.dropout 0 "
            "-> 0.5 (--set); as saved: training.optimizer.adamw.learning_rate stays 0.0006 (the "
            "job file gives 0.25; --set training.optimizer.adamw.learning_rate=0.25 would change "
            "it)");
  EXPECT_EQ((*changed)->continuation.job.adamw.learning_rate, 6e-4);
  EXPECT_EQ((*changed)->continuation.job.dropout, 0.5);
  job_.seed = 4;
  const Found found = Find(job_);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(found.status().ToString(), HasSubstr("/ckpt/step-00000030"));
  EXPECT_THAT(found.status().ToString(), HasSubstr("training.seed 3 -> 4"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumePointTest, testing::Values(1, 2, 3, 5));

// Ranges that begin and end anywhere in a unit's flat buffer.
TEST(StateSourceTest, ReadsAnyRangeOfAnyBuffer) {
  const JobSpec job = SmallJob(Architecture::kLlama, true, Precision::kBf16);
  FakeFileSystem files;
  ASSERT_TRUE(Group(2, 3).Write(job, 5, files)[0].ok());
  const auto source = OpenStateSource(files, "/ckpt/step-00000005", job.model);
  ASSERT_TRUE(source.ok()) << source.status();
  const std::vector<UnitSpec> units = MakeUnits(job.model);
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    const UnitSpec& spec = units[static_cast<size_t>(unit)];
    const int owner = spec.owner >= 0 ? spec.owner : unit;
    std::vector<float> expected(static_cast<size_t>(spec.flat_elements));
    for (int buffer = 0; buffer < 3; ++buffer) {
      for (const ParameterSpec& parameter : spec.parameters) {
        for (int64_t i = parameter.offset; i < parameter.offset + parameter.elements; ++i) {
          expected[static_cast<size_t>(i)] = Group::Value(owner, buffer, i, 0);
        }
      }
      for (int64_t begin = 0; begin < spec.flat_elements; begin += 61) {
        const int64_t end = std::min(spec.flat_elements, begin + 101);
        std::vector<float> values(static_cast<size_t>(end - begin), 7.0F);
        ASSERT_TRUE((*source)(unit, buffer, begin, values).ok());
        ASSERT_THAT(values,
                    testing::ElementsAreArray(expected.begin() + begin, expected.begin() + end));
      }
    }
  }
}

}  // namespace
}  // namespace esteira
