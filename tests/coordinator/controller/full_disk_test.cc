// The coordinator's own disk is full for a while.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "tests/coordinator/controller/harness.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FullDiskTest : public ControllerHarness {};

TEST_F(FullDiskTest, WithAFullDiskNothingIsAcknowledgedAndNothingIsLost) {
  RunJob(1);
  store_->full = true;
  EXPECT_EQ(Submit("job 1").status().code(), absl::StatusCode::kResourceExhausted);
  workers_["a"].sequence = 1;
  controller_->Receive(workers_["a"].number, {"a", 1, 2, TrainerReport{Place(0), Step(1)}}, [] {});
  absl::Notification listed;
  controller_->ListWorkers([&](const auto&) { listed.Notify(); });
  EXPECT_FALSE(listed.WaitForNotificationWithTimeout(absl::Milliseconds(100)))
      << "held back with the turn";
  EXPECT_THAT(Told("a"), IsEmpty());
  store_->full = false;
  listed.WaitForNotification();
  EXPECT_THAT(Told("a"), ElementsAre("ack 2"));
  EXPECT_EQ(Find("job-1").step, 1);
}

TEST_F(FullDiskTest, AFullDiskEndsNoHealthyJob) {
  RunJob(1);
  store_->full = true;
  // The report is not handled while the disk is full, so the stream is not read on: no heartbeat.
  controller_->Receive(workers_["a"].number, {"a", 1, 2, TrainerReport{Place(0), Step(1)}}, [] {});
  store_->AwaitRefusals(1);
  clock_.Advance(absl::Minutes(5));
  store_->AwaitRefusals(2);
  store_->full = false;
  EXPECT_EQ(Workers()["a"], WorkerState::kBusy);
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Advance(absl::Milliseconds(9999));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(Find("job-1").reason, "WORKER_LOST") << "leases run again";
}

// Its end is known and not yet recorded, so the store still says RUNNING.
TEST_F(FullDiskTest, CancellingAJobThatEndedWhileTheDiskIsFull) {
  RunJob(2);
  ASSERT_TRUE(Submit("next 2").ok());
  ASSERT_TRUE(Submit("last 2").ok());
  store_->full = true;
  // Both workers of the job are lost at once; then it fails and is dropped.
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  store_->AwaitRefusals(1);
  absl::StatusOr<Job> ended, queued;
  absl::BlockingCounter answers(2);
  const auto answer = [&answers](absl::StatusOr<Job>& to) {
    return [&answers, &to](absl::StatusOr<Job> job) {
      to = std::move(job);
      answers.DecrementCount();
    };
  };
  controller_->Cancel("job-1", answer(ended));
  controller_->Cancel("job-2", answer(queued));
  store_->AwaitRefusals(2);
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  store_->full = false;
  answers.Wait();
  EXPECT_EQ(ended.status(), absl::FailedPreconditionError("job-1 is already FAILED"));
  ASSERT_TRUE(queued.ok()) << queued.status();
  EXPECT_EQ(queued->state, JobState::kCancelled);
  EXPECT_THAT(Find("job-1").failures, SizeIs(2));
  Connect("a");
  Connect("b");
  EXPECT_EQ(Find("job-3").state, JobState::kStarting);
}

}  // namespace
}  // namespace esteira
