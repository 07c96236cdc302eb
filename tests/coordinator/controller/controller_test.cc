#include "coordinator/controller/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/blocking_counter.h"
#include "common/base/file_system.h"
#include "tests/coordinator/controller/harness.h"

namespace esteira {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ControllerTest : public ControllerHarness {};

TEST_F(ControllerTest, AJobGoesFromTheQueueToItsEnd) {
  ASSERT_EQ(Submit("job 2")->state, JobState::kQueued);
  EXPECT_EQ(Find("job-1").message, "waiting for workers: needs 2, 0 are registered");
  Connect("a");
  EXPECT_EQ(Find("job-1").message, "waiting for workers: needs 2, 1 is registered");
  EXPECT_THAT(Told("a"), ElementsAre("registered"));
  Connect("b");
  EXPECT_THAT(Told("a"), ElementsAre("configure job-1/1/0"));
  EXPECT_THAT(Told("b"), ElementsAre("registered", "configure job-1/1/1"));
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  Report("a", Place(0), ReadyReport{"A", "v", 100});
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  Report("b", Place(1), ReadyReport{"B", "v", 100});
  EXPECT_THAT(Told("a"), ElementsAre("start job-1/1 A,B"))
      << "Ready is acknowledged with the first step";
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);

  Report("a", Place(0), Step(1));
  EXPECT_EQ(Find("job-1").step, 0);
  EXPECT_THAT(Told("a"), IsEmpty()) << "a report that waits for other ranks is not on disk";
  Report("b", Place(1), Step(1));
  EXPECT_EQ(Find("job-1").step, 1);
  EXPECT_THAT(Told("a"), ElementsAre("ack 2"));
  const auto steps = store_->ListSteps("job-1", 1, 10);
  ASSERT_THAT(*steps, SizeIs(1));
  EXPECT_EQ(steps->front().parameter_hash, "0000000000000002") << "modulo 2^64";
  EXPECT_DOUBLE_EQ(steps->front().model_flops_utilization, 8 / 0.5 * 10 / 200);
  EXPECT_TRUE(RealFileSystem().Exists(directory_->JobFolder("job-1") + "/steps.jsonl"));

  Report("a", Place(0), Exit(0));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Report("b", Place(1), Exit(0));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kSucceeded);
  EXPECT_EQ(job.message, "trained 1 step");
  EXPECT_THAT(job.failures, IsEmpty());
  EXPECT_EQ(Workers()["a"], WorkerState::kIdle);
}

TEST_F(ControllerTest, TheSameRequestGivesTheSameJob) {
  EXPECT_EQ(Submit("job 1", 0, "r")->id, "job-1");
  EXPECT_EQ(Submit("job 1", 0, "r")->id, "job-1");
  EXPECT_EQ(Submit("other 1", 0, "r").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Submit("job 1", 1, "r").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Submit("job 1")->id, "job-2");
}

TEST_F(ControllerTest, SubmissionRefusesAndValidates) {
  EXPECT_EQ(Submit("bad").status().message(), "training.steps: missing");
  EXPECT_EQ(Submit("trap 2").status().message(), "no layout");
  const auto checked = Submit("job 3", 0, "", /*validate_only=*/true);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->id, "");
  EXPECT_EQ(checked->plan->layout.stages, 3);
  EXPECT_THAT(store_->List(10, "")->jobs, IsEmpty());
}

TEST_F(ControllerTest, PriorityThenOrderAndAllWorkersOrNone) {
  ASSERT_TRUE(Submit("first 2").ok());
  ASSERT_TRUE(Submit("second 2").ok());
  ASSERT_TRUE(Submit("urgent 3", 5).ok());
  Connect("a");
  Connect("b");
  // The urgent one needs more than there are, so it holds nobody back.
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  EXPECT_EQ(Find("job-2").state, JobState::kQueued);
  Connect("c");
  Connect("d");
  // Now it could run once all are idle: nobody overtakes it.
  EXPECT_EQ(Find("job-2").state, JobState::kQueued);
  EXPECT_EQ(Find("job-3").state, JobState::kQueued);
  Connect("e");
  EXPECT_EQ(Find("job-3").state, JobState::kStarting);
  EXPECT_EQ(Find("job-2").state, JobState::kQueued);
  Connect("f");
  Connect("g");
  EXPECT_EQ(Find("job-2").state, JobState::kStarting) << "three jobs side by side";
}

TEST_F(ControllerTest, AKilledTrainerIsTheCauseAndItsEchoesAreConsequences) {
  RunJob(3);
  Report("a", Place(0), FailedReport{absl::StatusCode::kUnavailable, "rank 1 is gone", true, 4});
  EXPECT_EQ(Find("job-1").state, JobState::kRunning) << "an echo waits for its cause";
  Report("b", Place(1), Exit(0, 9));
  Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.message, "rank 1 on worker b: trainer killed by signal 9 (SIGKILL)");
  EXPECT_THAT(Told("a"), Contains("abort job-1/1"));
  EXPECT_THAT(Told("c"), Contains("abort job-1/1"));
  EXPECT_THAT(Told("b"), Not(Contains("abort job-1/1")));
  EXPECT_EQ(Workers()["c"], WorkerState::kBusy) << "until its trainer has left";
  Report("c", Place(2), FailedReport{absl::StatusCode::kAborted, "aborted", false, 4});
  Report("c", Place(2), Exit(1));
  Report("a", Place(0), Exit(1));
  EXPECT_EQ(Workers()["c"], WorkerState::kIdle);
  job = Find("job-1");
  ASSERT_THAT(job.failures, SizeIs(3));
  EXPECT_EQ(job.failures[0].worker, "b");
  EXPECT_FALSE(job.failures[0].consequence);
  EXPECT_EQ(job.failures[1].worker, "a");
  EXPECT_TRUE(job.failures[1].consequence);
  EXPECT_TRUE(job.failures[2].consequence) << "it came after the first cause";
}

TEST_F(ControllerTest, AnEchoWithoutACauseFailsTheJobAfterALease) {
  RunJob(2);
  Report("a", Place(0), FailedReport{absl::StatusCode::kUnavailable, "peer is gone", true, 4});
  for (int i = 0; i < 5; ++i) {
    Advance(absl::Milliseconds(1999));
    Beat("a");
    Beat("b");
  }
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Advance(absl::Milliseconds(10));
  EXPECT_EQ(Find("job-1").state, JobState::kFailed);
  EXPECT_EQ(Find("job-1").message, "rank 0 on worker a: peer is gone");
  EXPECT_FALSE(Find("job-1").failures[0].consequence) << "the best that is known";
}

TEST_F(ControllerTest, ALostWorkerFailsItsJobAtTheEndOfItsLease) {
  RunJob(2);
  Disconnect("b");
  Advance(absl::Seconds(5));
  Beat("a");
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Advance(absl::Seconds(5));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.reason, "WORKER_LOST");
  EXPECT_THAT(job.message,
              HasSubstr("rank 1 on worker b: the worker is lost: nothing heard for 10s"));
  EXPECT_THAT(Told("a"), Contains("abort job-1/1"));
  EXPECT_EQ(Workers()["b"], WorkerState::kLost);
  Report("a", Place(0), Exit(1));
  EXPECT_EQ(Workers()["a"], WorkerState::kIdle);
}

TEST_F(ControllerTest, AWorkerThatReconnectsWithinItsLeaseGoesOn) {
  RunJob(2);
  Disconnect("b");
  Advance(absl::Seconds(4));
  Beat("a");
  Connect("b", Place(1));
  Advance(absl::Seconds(7));
  Beat("a");
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  // Reports are sent again from the last acknowledged one: once is enough.
  Report("a", Place(0), Step(1));
  workers_["b"].sequence = 0;
  Report("b", Place(1), ReadyReport{"again", "v", 1});
  Report("b", Place(1), Step(1));
  EXPECT_EQ(Find("job-1").step, 1);
}

TEST_F(ControllerTest, ARestartedWorkerIsAnotherOne) {
  RunJob(2);
  const auto old = workers_["b"];
  Restart("b");
  EXPECT_EQ(Find("job-1").state, JobState::kFailed);
  EXPECT_EQ(Find("job-1").reason, "WORKER_RESTARTED");
  // What the old life still says changes nothing.
  controller_->Receive(old.number, {"b", old.incarnation, 9, TrainerReport{Place(1), Exit(0, 9)}},
                       [] {});
  EXPECT_EQ(Workers()["b"], WorkerState::kIdle);
  EXPECT_EQ(Find("job-1").reason, "WORKER_RESTARTED");
}

TEST_F(ControllerTest, AnOldIncarnationIsRefused) {
  Connect("a");
  Restart("a");
  workers_["a"].incarnation = 1;
  Connect("a");
  EXPECT_THAT(Told("a"), ElementsAre("refused", "closed FAILED_PRECONDITION"));
}

TEST_F(ControllerTest, RanksThatDisagreeEndTheJob) {
  RunJob(2);
  Report("a", Place(0), Step(1, 1.0));
  Report("b", Place(1), Step(1, std::nextafter(1.0, 2.0)));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.reason, "DIVERGED");
  EXPECT_THAT(job.message,
              HasSubstr("rank 0 has 1 (3ff0000000000000), rank 1 has 1 (3ff0000000000001)"));
  EXPECT_THAT(*store_->ListSteps("job-1", 1, 9), IsEmpty());
}

TEST_F(ControllerTest, TheStepThatStopsAJobIsRecordedFirst) {
  RunJob(3);
  const FailedReport cause{absl::StatusCode::kFailedPrecondition, "non-finite", false, 1};
  const FailedReport echo{absl::StatusCode::kAborted, "stopped with rank 0", true, 1};
  Report("a", Place(0), Step(1));
  Report("a", Place(0), cause);
  Report("a", Place(0), Exit(1));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning) << "the others report the step, too";
  Report("b", Place(1), Step(1));
  Report("b", Place(1), echo);
  EXPECT_EQ(Find("job-1").step, 0);
  Report("c", Place(2), Step(1));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_EQ(job.message, "rank 0 on worker a: non-finite");
  EXPECT_EQ(job.step, 1);
  ASSERT_THAT(*store_->ListSteps("job-1", 1, 9), SizeIs(1));
  EXPECT_THAT(Told("c"), Contains("abort job-1/1"));
  EXPECT_THAT(Told("b"), Contains("ack 3")) << "Ready, the step and its failure";
}

TEST_F(ControllerTest, ARankThatFailedWithoutReportingTheStepIsNotWaitedFor) {
  RunJob(2);
  Report("a", Place(0), Step(1));
  Report("a", Place(0), Step(2));
  Report("a", Place(0), FailedReport{absl::StatusCode::kInternal, "disk", false, 2});
  Report("b", Place(1), Step(1));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Report("b", Place(1), FailedReport{absl::StatusCode::kUnavailable, "peer is gone", true, 2});
  EXPECT_EQ(Find("job-1").message, "rank 0 on worker a: disk");
  EXPECT_THAT(*store_->ListSteps("job-1", 1, 9), SizeIs(2));
}

TEST_F(ControllerTest, AVerdictWaitsForOneLeaseAndNotAfterASignal) {
  RunJob(2);
  Report("a", Place(0), Step(1));
  Report("a", Place(0), FailedReport{absl::StatusCode::kInternal, "disk", false, 1});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Find("job-1").state, JobState::kRunning);
    Advance(absl::Seconds(2));
    Beat("a");
    Beat("b");
  }
  EXPECT_EQ(Find("job-1").message, "rank 0 on worker a: disk");
  EXPECT_EQ(Find("job-1").step, 0);
  Report("a", Place(0), Exit(1));
  Report("b", Place(1), Exit(1));
  ASSERT_TRUE(Submit("job 2").ok());
  for (int rank = 0; rank < 2; ++rank) Report(Name(rank), {"job-2", 1, rank}, Ready(rank));
  Report("a", {"job-2", 1, 0}, Step(1));
  Report("a", {"job-2", 1, 0}, Exit(0, 9));
  EXPECT_EQ(Find("job-2").state, JobState::kFailed);
}

TEST_F(ControllerTest, ASecondWorkerWithTheSameIdIsRefusedAndTheJobGoesOn) {
  RunJob(2);
  const FakeWorker first = workers_["b"];
  ++workers_["b"].incarnation;
  Connect("b");
  EXPECT_THAT(Told("b"), ElementsAre("refused", "closed ALREADY_EXISTS"));
  workers_["b"] = first;
  EXPECT_THAT(Told("b"), IsEmpty());
  Report("a", Place(0), Step(1));
  Report("b", Place(1), Step(1));
  EXPECT_EQ(Find("job-1").step, 1);
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
}

TEST_F(ControllerTest, CancellingWhereverTheJobIs) {
  ASSERT_TRUE(Submit("queued 9").ok());
  EXPECT_EQ(Cancel("job-1")->state, JobState::kCancelled);
  EXPECT_EQ(Cancel("job-1")->state, JobState::kCancelled) << "twice is no error";
  Connect("a");
  ASSERT_TRUE(Submit("starting 1").ok());
  Told("a");
  EXPECT_EQ(Cancel("job-2")->state, JobState::kStopping);
  EXPECT_THAT(Told("a"), Contains("abort job-2/1"));
  Report("a", {"job-2", 1, 0}, Exit(1));
  EXPECT_EQ(Find("job-2").state, JobState::kCancelled);
  EXPECT_THAT(Find("job-2").failures, IsEmpty());
  EXPECT_EQ(Cancel("job-9").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControllerTest, CancellingDoesNotWaitForEver) {
  RunJob(1);
  EXPECT_EQ(Cancel("job-1")->state, JobState::kStopping);
  for (int i = 0; i < 15; ++i) {
    Advance(absl::Seconds(2));
    Beat("a");
  }
  EXPECT_EQ(Find("job-1").state, JobState::kCancelled);
  EXPECT_THAT(Find("job-1").message, HasSubstr("not yet confirmed by rank 0 on worker a"));
  EXPECT_EQ(Workers()["a"], WorkerState::kBusy);
}

TEST_F(ControllerTest, FinishedJobsCannotBeCancelled) {
  RunJob(1);
  Report("a", Place(0), Exit(0));
  EXPECT_EQ(Cancel("job-1").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ControllerTest, TrainersThatAreNotReadyInTimeFailTheJob) {
  Connect("a");
  Connect("b");
  ASSERT_TRUE(Submit("job 2").ok());
  Report("a", Place(0), ReadyReport{});
  for (int i = 0; i < 60; ++i) {
    Advance(absl::Seconds(2));
    Beat("a");
    Beat("b");
  }
  EXPECT_EQ(Find("job-1").reason, "START_TIMEOUT");
  EXPECT_EQ(Find("job-1").message, "trainers were not ready in time: rank 1 on worker b");
}

TEST_F(ControllerTest, AConfigureThatWasLostOnTheWayDoesNotKeepTheWorkerForEver) {
  Connect("a");
  ASSERT_TRUE(Submit("job 1").ok());
  Connect("a");  // the same life, without a trainer
  EXPECT_EQ(Workers()["a"], WorkerState::kBusy);
  for (int i = 0; i < 6; ++i) {
    Advance(absl::Seconds(2));
    Beat("a");
  }
  EXPECT_EQ(Find("job-1").state, JobState::kFailed);
  EXPECT_EQ(Workers()["a"], WorkerState::kIdle);
}

TEST_F(ControllerTest, ARankThatRunsFarAheadFails) {
  StopCoordinator();
  options_.max_open_steps = 3;
  StartCoordinator();
  RunJob(2);
  for (int step = 1; step <= 3; ++step) Report("a", Place(0), Step(step));
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  Report("a", Place(0), Step(4));
  const Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kFailed);
  EXPECT_THAT(job.message, HasSubstr("3 steps ahead of ranks that have not reported step 1"));
}

TEST_F(ControllerTest, ReportsOfOtherPlacesAreDroppedAndTheirTrainersAborted) {
  RunJob(1);
  Connect("x");
  Told("x");
  Report("x", {"job-77", 1, 0}, Step(1));
  Report("x", {"job-1", 1, 0}, Step(1));  // rank 0 is a's
  Report("a", {"job-1", 2, 0}, Step(1));  // another epoch
  Report("a", {"job-1", 1, -1}, Step(1));
  Report("a", {"job-1", 1, 1 << 30}, Exit(1));
  EXPECT_EQ(Find("job-1").step, 0);
  EXPECT_EQ(Find("job-1").state, JobState::kRunning);
  EXPECT_THAT(Told("x"), ElementsAre("abort job-77/1", "ack 1", "abort job-1/1", "ack 2"));
}

TEST_F(ControllerTest, AnOrphanTrainerIsAbortedAndItsWorkerBusyUntilItLeft) {
  Connect("a", Assignment{"job-5", 3, 1});
  EXPECT_THAT(Told("a"), ElementsAre("registered", "abort job-5/3"));
  EXPECT_EQ(Workers()["a"], WorkerState::kBusy);
  Report("a", {"job-5", 3, 1}, Exit(0, 9));
  EXPECT_EQ(Workers()["a"], WorkerState::kIdle);
}

TEST_F(ControllerTest, LogsCheckpointsAndValidationAreKept) {
  RunJob(1);
  Report("a", Place(0), LogReport{clock_.Now(), "hello"});
  Report("a", Place(0), CheckpointRecord{"/c/1", 1, 10, clock_.Now()});
  StepPart part = Step(1);
  part.record.validation_loss = 3.5;
  part.sample_ids = {5, 3, 5};
  Report("a", Place(0), part);
  EXPECT_THAT(*RealFileSystem().Read(directory_->LogFolder("job-1") + "/0.log"),
              HasSubstr(" a hello\n"));
  EXPECT_THAT(*store_->ListCheckpoints("job-1"), SizeIs(1));
  EXPECT_EQ(Find("job-1").validation_loss, 3.5);
  EXPECT_THAT(*RealFileSystem().Read(directory_->JobFolder("job-1") + "/samples.jsonl"),
              HasSubstr("[5,3,5]"));
}

// A notice is the job's last word and one of its events, and leaves its state; a job that goes on
// from a checkpoint stands at its step.
TEST_F(ControllerTest, NoticesAreEventsOfTheJob) {
  RunJob(1);
  const size_t before = Find("job-1").transitions.size();
  const NoticeReport resumed{"RESUMED", "continues from step 7", 7};
  Report("a", Place(0), resumed);
  Job job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kRunning);
  EXPECT_EQ(job.step, 7);
  EXPECT_EQ(job.message, "continues from step 7");
  ASSERT_EQ(job.transitions.size(), before + 1);
  EXPECT_EQ(job.transitions.back().state, JobState::kRunning);
  EXPECT_EQ(job.transitions.back().reason, "RESUMED");
  Report("a", Place(0), resumed);  // sent again
  Report("a", Place(0), Step(7));  // not of this job
  EXPECT_EQ(Find("job-1").transitions.size(), before + 1);
  Report("a", Place(0), Step(8));
  EXPECT_EQ(Find("job-1").step, 8);
  EXPECT_THAT(*store_->ListSteps("job-1", 1, 10), SizeIs(1));
  Report("a", Place(0), NoticeReport{"CHECKPOINT_FAILED", "no space", std::nullopt});
  Report("a", Place(0), Step(9));
  job = Find("job-1");
  EXPECT_EQ(job.step, 9);
  EXPECT_EQ(job.message, "no space");
  Report("a", Place(0), Exit(0));
  job = Find("job-1");
  EXPECT_EQ(job.state, JobState::kSucceeded);
  EXPECT_EQ(job.transitions.size(), before + 3);
}

TEST_F(ControllerTest, AStartThatWasLostWithTheStreamIsSentAgain) {
  RunJob(2);
  Disconnect("b");
  Connect("b", Place(1));
  EXPECT_THAT(Told("b"), ElementsAre("registered", "start job-1/1 at-0,at-1"));
  EXPECT_THAT(Told("a"), IsEmpty());
}

TEST_F(ControllerTest, AStoppingJobsReportsAreAcknowledged) {
  RunJob(2);
  Report("a", Place(0), Step(1));  // waits for b's
  ASSERT_EQ(Cancel("job-1")->state, JobState::kStopping);
  EXPECT_THAT(Told("a"), ElementsAre("abort job-1/1", "ack 2"));
  Report("a", Place(0), Step(2));
  EXPECT_THAT(Told("a"), ElementsAre("ack 3"));
}

TEST_F(ControllerTest, OnlyATrainerThatWasKilledForMemoryIsOutOfMemory) {
  RunJob(1);
  Report("a", Place(0),
         FailedReport{absl::StatusCode::kResourceExhausted, "cannot write: no space", false, 4});
  EXPECT_EQ(Find("job-1").reason, "TRAINER_FAILED");
  EXPECT_EQ(Find("job-1").message, "rank 0 on worker a: cannot write: no space");
  Report("a", Place(0), Exit(1));
  ASSERT_TRUE(Submit("job 1").ok());
  Report("a", {"job-2", 1, 0}, ExitReport{0, 9, true, ""});
  EXPECT_EQ(Find("job-2").reason, "OUT_OF_MEMORY");
}

TEST_F(ControllerTest, AJobThatNeedsTheMemoryOfMoreWorkersThanAreIdleWaits) {
  for (int rank = 0; rank < 4; ++rank) Connect(Name(rank));
  ASSERT_TRUE(Submit("other 3").ok());
  ASSERT_TRUE(Submit("large 4").ok());
  EXPECT_EQ(Find("job-2").state, JobState::kQueued);
  EXPECT_EQ(Find("job-2").message,
            "waiting for 2 idle workers of 4; the memory of 1 is too little");
  EXPECT_EQ(Find("job-2").epoch, 0);
  ASSERT_TRUE(Submit("small 1").ok());
  EXPECT_EQ(Find("job-3").state, JobState::kQueued) << "the large one cannot starve";
  for (int rank = 0; rank < 3; ++rank) Report(Name(rank), Place(rank), Exit(1));
  EXPECT_EQ(Find("job-2").state, JobState::kStarting);
}

TEST_F(ControllerTest, AJobThatNeedsMoreMemoryThanThereIsFails) {
  for (int rank = 0; rank < 4; ++rank) Connect(Name(rank));
  ASSERT_TRUE(Submit("other 3").ok());
  ASSERT_TRUE(Submit("large 4").ok());
  for (int i = 0; i < 2; ++i) {
    Advance(absl::Seconds(5));
    for (int rank = 0; rank < 3; ++rank) Beat(Name(rank));
  }
  EXPECT_EQ(Workers()["d"], WorkerState::kLost);
  EXPECT_EQ(Find("job-2").state, JobState::kQueued);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Find("job-2").state, JobState::kQueued);
    Report(Name(rank), Place(rank), Exit(1));
  }
  EXPECT_EQ(Find("job-2").reason, "PLAN_FAILED") << "all are idle: nobody is left to wait for";
}

TEST_F(ControllerTest, AnEchoIsNotTheCauseWhenThereIsAnother) {
  RunJob(3);
  Report("c", Place(2), FailedReport{absl::StatusCode::kUnavailable, "peer is gone", true, 1});
  Report("a", Place(0), Step(1, 1));
  Report("b", Place(1), Step(1, 2));
  Report("c", Place(2), Step(1, 1));
  const Job job = Find("job-1");
  EXPECT_EQ(job.reason, "DIVERGED");
  ASSERT_THAT(job.failures, SizeIs(1));
  EXPECT_TRUE(job.failures[0].consequence);
}

TEST_F(ControllerTest, EndedJobsAreCounted) {
  RunJob(1);
  EXPECT_EQ(JobsGauge("SUCCEEDED"), 0);
  EXPECT_EQ(JobsGauge("RUNNING"), 1);
  Report("a", Place(0), Exit(0));
  EXPECT_EQ(JobsGauge("SUCCEEDED"), 1);
  EXPECT_EQ(JobsGauge("RUNNING"), 0);
  ASSERT_TRUE(Submit("job 9").ok());
  ASSERT_TRUE(Cancel("job-2").ok());
  StopCoordinator();
  StartCoordinator();
  EXPECT_EQ(JobsGauge("SUCCEEDED"), 1);
  EXPECT_EQ(JobsGauge("CANCELLED"), 1);
}

TEST_F(ControllerTest, ManyJobsWaitInOrder) {
  constexpr int kJobs = 1000;
  absl::BlockingCounter done(kJobs);
  for (int i = 0; i < kJobs; ++i) {
    controller_->Submit({"job 1", "", 0, false}, [&](const absl::StatusOr<Job>& job) {
      EXPECT_TRUE(job.ok());
      done.DecrementCount();
    });
  }
  done.Wait();
  Connect("a");
  EXPECT_EQ(Find("job-1").state, JobState::kStarting);
  EXPECT_EQ(Find(absl::StrCat("job-", kJobs)).message, "waiting for 1 idle worker of 1");
}

TEST_F(ControllerTest, WatchersAreWokenForTheirJobOnly) {
  ASSERT_TRUE(Submit("one 1").ok());
  ASSERT_TRUE(Submit("two 9").ok());
  std::atomic<int> one = 0, two = 0;
  const int64_t watch = controller_->Watch("job-1", [&] { ++one; });
  controller_->Watch("job-2", [&] { ++two; });
  ASSERT_TRUE(Cancel("job-1").ok());
  Workers();
  EXPECT_GT(one, 0);
  EXPECT_EQ(two, 0);
  controller_->Unwatch(watch);
  const int before = one;
  controller_->Stop();
  EXPECT_EQ(one, before);
  EXPECT_EQ(two, 1) << "Stop wakes those that are left";
}

}  // namespace
}  // namespace esteira
