// Nothing that goes wrong while a checkpoint is written leaves one that is not whole, or loses one
// that was.

#include <gmock/gmock.h>

#include "common/checkpoint/checkpoint_folder.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/worker/checkpoint/group.h"

namespace esteira {
namespace {

constexpr char kOld[] = "/ckpt/step-00000001";
constexpr char kNew[] = "/ckpt/step-00000002";

class CheckpointFaultTest : public testing::Test {
 protected:
  CheckpointFaultTest() : job_(SmallJob(Architecture::kGpt2, true, Precision::kBf16)) {
    CHECK(Group(1, 1).Write(job_, 1, files_)[0].ok());
    job_.checkpoints_to_keep = 2;
  }

  void SetUp() override { old_manifest_ = *files_.Read(std::string(kOld) + "/manifest.json"); }

  // Everything under a checkpoint's name is a whole checkpoint, and the old one is among them.
  void ExpectOnlyWholeCheckpoints(FileSystem& files) {
    const auto names = CheckpointsIn(files);
    for (const std::string& name : names) {
      if (name[0] == '.') continue;
      EXPECT_TRUE(VerifyCheckpoint(files, "/ckpt/" + name).ok()) << name;
    }
    EXPECT_EQ(*files.Read(std::string(kOld) + "/manifest.json"), old_manifest_);
  }

  static std::vector<absl::Status> StatusesOf(
      const std::vector<absl::StatusOr<CheckpointResult>>& results) {
    std::vector<absl::Status> statuses;
    for (const auto& result : results) statuses.push_back(result.status());
    return statuses;
  }

  JobSpec job_;
  FakeFileSystem files_;
  std::string old_manifest_;
};

TEST_F(CheckpointFaultTest, OneOperationFails) {
  Group group(2, 2);
  int failures = 0;
  for (int operation = 0;; ++operation) {
    FaultyFileSystem faulty(files_);
    faulty.FailOnce(operation, absl::PermissionDeniedError("read-only file system"));
    const auto statuses = StatusesOf(group.Write(job_, 2, faulty));
    const bool failed = !statuses[0].ok();
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, statuses[0]) << operation;
      EXPECT_EQ(status.code(),
                failed ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kOk);
    }
    ExpectOnlyWholeCheckpoints(files_);
    EXPECT_EQ(files_.Exists(kNew), !failed) << operation;
    EXPECT_EQ(CheckpointsIn(files_).size(), failed ? 1u : 2u)
        << operation;  // nothing temporary is left
    failures += failed ? 1 : 0;
    ASSERT_TRUE(files_.RemoveAll(kNew).ok());
    if (operation >= faulty.operations()) break;  // the fault was never reached
  }
  EXPECT_GT(failures, 30);
}

TEST_F(CheckpointFaultTest, EverythingFailsFromAnOperationOnAsIfTheProcessesHadDied) {
  Group group(2, 1);
  int failures = 0;
  for (int operation = 0;; ++operation) {
    FaultyFileSystem faulty(files_);
    faulty.FailFrom(operation, absl::UnavailableError("gone"));
    failures += group.Write(job_, 2, faulty)[0].ok() ? 0 : 1;
    ExpectOnlyWholeCheckpoints(files_);
    if (operation >= faulty.operations()) break;
    // The next attempt is not hindered by what was left.
    auto results = group.Write(job_, 2, files_);
    ASSERT_TRUE(results[0].ok()) << operation << " " << results[0].status();
    EXPECT_EQ(CheckpointsIn(files_).size(), 2u) << operation;
    ASSERT_TRUE(files_.RemoveAll(kNew).ok());
  }
  EXPECT_GT(failures, 30);
}

TEST_F(CheckpointFaultTest, TheDiskFillsUpAnywhere) {
  Group group(1, 3);
  for (int64_t room = 0;; room += 997) {
    FaultyFileSystem faulty(files_);
    faulty.FailAfterBytes(room);
    const auto results = group.Write(job_, 2, faulty);
    ExpectOnlyWholeCheckpoints(files_);
    if (results[0].ok()) break;
    for (const auto& result : results) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
    }
    EXPECT_EQ(CheckpointsIn(files_).size(), 1u) << room;
  }
  EXPECT_TRUE(files_.Exists(kNew));
}

TEST_F(CheckpointFaultTest, OnlyOneRankFails) {
  Group group(2, 2);
  for (int failing = 0; failing < group.num_ranks(); ++failing) {
    FaultyFileSystem faulty(files_);
    faulty.FailFrom(0, absl::ResourceExhaustedError("no space left on device"));
    std::vector<FileSystem*> files(static_cast<size_t>(group.num_ranks()), &files_);
    files[static_cast<size_t>(failing)] = &faulty;
    const auto results = group.Write(job_, 2, files);
    const bool writes = failing < 2;  // replica 0 of a stage
    for (const auto& result : results) EXPECT_EQ(result.ok(), !writes) << failing;
    if (writes) {
      EXPECT_EQ(results[3].status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(results[3].status().ToString(), testing::HasSubstr("no space left on device"));
    }
    if (failing == 1) {
      EXPECT_THAT(results[3].status().ToString(), testing::HasSubstr("rank 1"));
    }
    ASSERT_TRUE(files_.RemoveAll(kNew).ok());
  }
}

// As in a small tmpfs with keep 1: the old checkpoint goes only after the new one, so where there
// is no room for both, each save fails, gives back what it took, and the old one stays.
TEST_F(CheckpointFaultTest, NoRoomForTwoKeepsTheFirstAndSaysWhy) {
  job_.checkpoints_to_keep = 1;
  Group group(2, 1);
  const int64_t bytes = ReadManifest(files_, kOld)->total_bytes();
  for (int64_t step = 2; step <= 5; ++step) {
    FaultyFileSystem faulty(files_);
    faulty.FailAfterBytes(bytes / 2);  // what the first leaves of the disk, at each save anew
    for (const auto& result : group.Write(job_, step, faulty)) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(result.status().ToString(),
                  testing::HasSubstr("/ckpt must have room for one checkpoint more"));
    }
    EXPECT_THAT(CheckpointsIn(files_), testing::ElementsAre("step-00000001"));
    ExpectOnlyWholeCheckpoints(files_);
  }
  FaultyFileSystem roomy(files_);
  roomy.FailAfterBytes(bytes * 2);
  ASSERT_TRUE(group.Write(job_, 6, roomy)[0].ok());
  EXPECT_THAT(CheckpointsIn(files_), testing::ElementsAre("step-00000006"));
}

// While one checkpoint takes the name of another of the same step, the old one is never gone from
// the disk.
TEST_F(CheckpointFaultTest, ReplacingTheSameStepNeverLosesIt) {
  Group group(1, 1);
  for (int operation = 0;; ++operation) {
    FaultyFileSystem faulty(files_);
    faulty.FailFrom(operation, absl::UnavailableError("gone"));
    (void)group.Write(job_, 1, faulty, 0);
    if (operation >= faulty.operations()) break;
    // Whatever happened, the next write of another step finds or restores it.
    ASSERT_TRUE(group.Write(job_, 2, files_)[0].ok()) << operation;
    ASSERT_TRUE(VerifyCheckpoint(files_, kOld).ok()) << operation;
    ASSERT_TRUE(files_.RemoveAll(kNew).ok());
  }
}

// `latest` is written last; while it names an older checkpoint, that one stays.
TEST_F(CheckpointFaultTest, AFailureToPointLatestLosesNothing) {
  job_.checkpoints_to_keep = 1;
  Group group(1, 1);
  bool seen = false;
  for (int operation = 0;; ++operation) {
    ASSERT_TRUE(files_.RemoveAll("/ckpt").ok());
    ASSERT_TRUE(group.Write(job_, 1, files_)[0].ok());
    FaultyFileSystem faulty(files_);
    faulty.FailOnce(operation, absl::ResourceExhaustedError("no space left on device"));
    const auto result = group.Write(job_, 2, faulty)[0];
    const std::string latest = *files_.Read("/ckpt/latest");
    EXPECT_TRUE(VerifyCheckpoint(files_, "/ckpt/" + latest.substr(0, latest.size() - 1)).ok());
    if (result.ok() && latest == "step-00000001\n") {
      seen = true;
      EXPECT_EQ(result->cleanup.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_TRUE(VerifyCheckpoint(files_, kNew).ok());
    }
    if (operation >= faulty.operations()) break;
  }
  EXPECT_TRUE(seen);
}

TEST_F(CheckpointFaultTest, AFailureToRemoveOldOnesIsReportedAndLosesNothing) {
  job_.checkpoints_to_keep = 1;
  Group group(1, 1);
  FaultyFileSystem counting(files_);
  ASSERT_TRUE(group.Write(job_, 2, counting)[0].ok());
  EXPECT_FALSE(files_.Exists(kOld));
  const int last = counting.operations() - 1;
  for (const int operation : {last - 1, last}) {  // the rename and the removal
    ASSERT_TRUE(files_.RemoveAll("/ckpt").ok());
    ASSERT_TRUE(group.Write(job_, 1, files_)[0].ok());
    FaultyFileSystem faulty(files_);
    faulty.FailOnce(operation, absl::PermissionDeniedError("no"));
    const auto result = group.Write(job_, 2, faulty)[0];
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->cleanup.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE(VerifyCheckpoint(files_, kNew).ok());
  }
}

}  // namespace
}  // namespace esteira
