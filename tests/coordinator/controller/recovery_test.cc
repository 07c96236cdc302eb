#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/base/file_system.h"
#include "tests/coordinator/controller/harness.h"

namespace esteira {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RecoveryTest : public ControllerHarness {
 protected:
  void RestartCoordinator() {
    StopCoordinator();
    StartCoordinator();
  }
};

TEST_F(RecoveryTest, HealthyTrainingGoesOn) {
  RunJob(2);
  Report("a", Place(0), Step(1));
  Report("b", Place(1), Step(1));
  Report("a", Place(0), Step(2));  // not acknowledged: b's is missing
  RestartCoordinator();
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Connect("a", Place(0));
  Connect("b", Place(1));
  Report("a", Place(0), Step(2));
  Report("b", Place(1), Step(1));  // sent again although it is recorded
  Report("b", Place(1), Step(2));
  Advance(absl::Seconds(4));
  Beat("a");
  Beat("b");
  Advance(absl::Seconds(7));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  EXPECT_EQ(Find("job-1").step, 2);
  EXPECT_THAT(*store_->ListSteps("job-1", 1, 9), SizeIs(2));
  Report("a", Place(0), Exit(0));
  Report("b", Place(1), Exit(0));
  EXPECT_EQ(Find("job-1").state, JobState::kSucceeded);
}

TEST_F(RecoveryTest, LinesThatACrashLeftOutAreWritten) {
  RunJob(1);
  for (int step = 1; step <= 3; ++step) Report("a", Place(0), Step(step));
  Report("a", Place(0), Exit(0));
  ASSERT_EQ(Find("job-1").state, JobState::kSucceeded);
  const std::string path = directory_->JobFolder("job-1") + "/steps.jsonl";
  const std::string all = *RealFileSystem().Read(path);
  const size_t second = all.find('\n') + 1;
  for (const size_t left : {second, second + 9, all.size() - 1}) {
    std::filesystem::resize_file(path, left);
    RestartCoordinator();
    EXPECT_EQ(*RealFileSystem().Read(path), all) << left;
  }
  std::filesystem::remove(path);
  RestartCoordinator();
  EXPECT_FALSE(std::filesystem::exists(path)) << "removed from a job that is over";
}

TEST_F(RecoveryTest, ALostFileOfAJobThatRunsIsWrittenAgain) {
  RunJob(1);
  Report("a", Place(0), Step(1));
  const std::string path = directory_->JobFolder("job-1") + "/steps.jsonl";
  const std::string all = *RealFileSystem().Read(path);
  for (const bool torn : {false, true}) {
    std::filesystem::resize_file(path, torn ? 5 : 0);
    if (!torn) std::filesystem::remove(path);
    RestartCoordinator();
    EXPECT_EQ(*RealFileSystem().Read(path), all);
  }
}

TEST_F(RecoveryTest, AFileThatIsNotOursKeepsTheCoordinatorFromNothing) {
  RunJob(1);
  Report("a", Place(0), Step(1));
  const std::string path = directory_->JobFolder("job-1") + "/steps.jsonl";
  std::ofstream(path) << "mine\n";
  RestartCoordinator();
  EXPECT_EQ(*RealFileSystem().Read(path), "mine\n");
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
}

TEST_F(RecoveryTest, WhoIsNotBackAfterOneLeaseIsNamed) {
  RunJob(2);
  RestartCoordinator();
  Connect("a", Place(0));
  Advance(absl::Milliseconds(9999));
  Beat("a");
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Advance(absl::Milliseconds(1));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.message, "not heard of since the coordinator restarted: rank 1 on worker b");
  EXPECT_THAT(Told("a"), Contains("abort job-1/1"));
  EXPECT_EQ(Workers().count("b"), 1u);
  EXPECT_EQ(Workers()["b"], WorkerState::kLost);
  Connect("b", Place(1));
  EXPECT_THAT(Told("b"), ElementsAre("registered", "abort job-1/1"));
}

// It died after its commit and before it sent Start, or after it sent Start to one of them.
TEST_F(RecoveryTest, AStartThatWasLostWithTheCoordinatorIsSentAgain) {
  RunJob(2);
  RestartCoordinator();
  Connect("a", Place(0));
  Connect("b", Place(1));
  Told("a");
  Report("a", Place(0), Ready(0));  // it was not acknowledged, so it comes again
  EXPECT_THAT(Told("a"), IsEmpty());
  Report("b", Place(1), Ready(1));
  EXPECT_THAT(Told("a"), ElementsAre("start job-1/1 at-0,at-1"));
  EXPECT_THAT(Told("b"), ElementsAre("registered", "start job-1/1 at-0,at-1"));
  Report("a", Place(0), Step(1));
  Report("b", Place(1), Step(1));
  EXPECT_EQ(Find("job-1").step, 1);
  EXPECT_THAT(Told("a"), ElementsAre("ack 2"));
}

TEST_F(RecoveryTest, AJobThatCannotBeStartedAgainFailsAfterTheStartTimeout) {
  RunJob(2);
  RestartCoordinator();
  Connect("a", Place(0));
  Connect("b", Place(1));
  Report("a", Place(0), Ready(0));
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(Find("job-1").state, JobState::kRunning);
    Advance(absl::Seconds(2));
    Beat("a");
    Beat("b");
  }
  EXPECT_EQ(Find("job-1").reason, "START_TIMEOUT");
  EXPECT_THAT(Find("job-1").message, HasSubstr("without the address of rank 1 on worker b"));
}

TEST_F(RecoveryTest, AStepShowsThatStartArrived) {
  RunJob(2);
  RestartCoordinator();
  Connect("a", Place(0));
  Connect("b", Place(1));
  Report("a", Place(0), Step(1));
  for (int i = 0; i < 70; ++i) {
    Advance(absl::Seconds(2));
    Beat("a");
    Beat("b");
  }
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
}

TEST_F(RecoveryTest, ATrainerThatLeftMeanwhileIsHeard) {
  RunJob(1);
  RestartCoordinator();
  Connect("a");  // no trainer any more, but its last reports
  Report("a", Place(0), Step(1));
  Report("a", Place(0), Exit(0));
  EXPECT_EQ(Find("job-1").state, JobState::kSucceeded);
  EXPECT_EQ(Find("job-1").step, 1);
  EXPECT_EQ(Workers()["a"], WorkerState::kIdle);
}

TEST_F(RecoveryTest, AJobThatHadNotBegunBeginsAgainInANewEpoch) {
  Connect("a");
  ASSERT_TRUE(Submit("job 1").ok());
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  RestartCoordinator();
  EXPECT_EQ(Find("job-1").state, JobState::kQueued);
  EXPECT_EQ(Find("job-1").reason, "COORDINATOR_RESTARTED");
  Connect("a", Place(0));
  EXPECT_THAT(Told("a"), Contains("abort job-1/1"));
  EXPECT_EQ(Find("job-1").state, JobState::kQueued) << "its only worker is still busy";
  Report("a", Place(0), Exit(1));
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  EXPECT_THAT(Told("a"), Contains("configure job-1/2/0"));
}

TEST_F(RecoveryTest, TheQueueAndItsNumbersAreKept) {
  ASSERT_TRUE(Submit("job 1", 0, "r").ok());
  ASSERT_TRUE(Submit("job 1", 7).ok());
  RestartCoordinator();
  EXPECT_EQ(Submit("job 1", 0, "r")->id, "job-1");
  EXPECT_EQ(Submit("job 1")->id, "job-3");
  Connect("a");
  EXPECT_EQ(Find("job-2").state, JobState::kStarting) << "priority 7 goes first";
}

TEST_F(RecoveryTest, AStoppedJobEndsEvenWhenItsWorkersAreGone) {
  RunJob(1);
  ASSERT_TRUE(Cancel("job-1").ok());
  RestartCoordinator();
  EXPECT_EQ(Find("job-1").state, JobState::kStopping);
  Advance(absl::Seconds(10));
  EXPECT_EQ(Find("job-1").state, JobState::kCancelled);
}

TEST_F(RecoveryTest, TwoCoordinatorsNeverShareAFolder) {
  EXPECT_EQ(DataDirectory::Open(root_).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace esteira
