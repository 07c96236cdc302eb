#include "coordinator/controller/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

class DecideTest : public testing::Test {
 protected:
  DecideTest() : state_(ControllerOptions{}) { state_.described_workers = 0; }

  void AddWorker(const std::string& id, absl::Time seen = kNow) {
    WorkerDescription worker;
    worker.id = id;
    ASSERT_TRUE(state_.membership.Register(worker, ++sessions_, seen).ok());
    state_.described_workers = state_.membership.CountPresent();
  }
  void AddQueued(int64_t sequence, int needs, int64_t priority = 0) {
    ActiveJob active;
    active.job = MakeQueuedJob(sequence, kNow);
    active.job.priority = priority;
    active.needs.min_workers = needs;
    state_.AddJob(std::move(active));
  }
  WorkerGroup& AddGroup(JobState job_state, int ranks) {
    ActiveJob active;
    active.job = MakeQueuedJob(1, kNow);
    active.job.state = job_state;
    active.job.epoch = 1;
    active.group.emplace();
    for (int rank = 0; rank < ranks; ++rank) {
      active.group->ranks.emplace_back().worker = std::string(1, static_cast<char>('a' + rank));
    }
    state_.AddJob(std::move(active));
    return *state_.jobs.at("job-1").group;
  }
  std::vector<Action> Now() const { return Decide(state_, kNow); }

  State state_;
  int64_t sessions_ = 0;
};

TEST_F(DecideTest, NothingToDo) { EXPECT_THAT(Now(), IsEmpty()); }

TEST_F(DecideTest, TheFirstOfTheQueueGetsTheIdleWorkers) {
  AddWorker("b");
  AddWorker("a");
  AddQueued(1, 1);
  AddQueued(2, 2, 9);
  AddQueued(3, 1, 9);
  EXPECT_THAT(Now(), ElementsAre(Action(LaunchJob{"job-2", {"a", "b"}})));
}

TEST_F(DecideTest, AJobThatCanRunSoonHoldsBackTheOthers) {
  AddWorker("a");
  AddWorker("b");
  state_.membership.Assign("b", {"job-9", 1, 0});
  AddQueued(1, 2);
  AddQueued(2, 1);
  EXPECT_THAT(Now(), IsEmpty());
}

TEST_F(DecideTest, AJobThatCannotRunHoldsBackNobody) {
  AddWorker("a");
  AddQueued(1, 2);
  AddQueued(2, 1);
  EXPECT_THAT(Now(), ElementsAre(Action(LaunchJob{"job-2", {"a"}})));
}

TEST_F(DecideTest, QueuedJobsHearOfNewWorkers) {
  AddWorker("a");
  AddQueued(1, 2);
  state_.described_workers = 0;
  EXPECT_THAT(Now(), ElementsAre(Action(DescribeQueue{})));
}

TEST_F(DecideTest, LostWorkersComeFirstAndAlone) {
  AddWorker("a");
  AddWorker("b", kNow - absl::Seconds(10));
  AddQueued(1, 1);
  EXPECT_THAT(Now(), ElementsAre(Action(LoseWorker{
                         "b", "nothing heard for 10s (lease 10s), its stream is open"})));
}

TEST_F(DecideTest, LostWorkersAreForgottenLater) {
  AddWorker("a", kNow - absl::Hours(1));
  state_.membership.MarkLost("a", "why");
  EXPECT_THAT(Now(), ElementsAre(Action(ForgetWorker{"a"})));
  EXPECT_THAT(Decide(state_, kNow - absl::Seconds(1)), IsEmpty());
}

TEST_F(DecideTest, StartsWhenEveryRankIsReady) {
  WorkerGroup& group = AddGroup(JobState::kStarting, 2);
  group.ranks[0].ready.emplace();
  EXPECT_THAT(Now(), IsEmpty());
  group.ranks[1].ready.emplace();
  EXPECT_THAT(Now(), ElementsAre(Action(StartJob{"job-1"})));
}

TEST_F(DecideTest, SucceedsWhenEveryTrainerHasLeft) {
  WorkerGroup& group = AddGroup(JobState::kRunning, 2);
  group.ranks[0].exit.emplace();
  EXPECT_THAT(Now(), IsEmpty());
  group.ranks[1].exit.emplace();
  EXPECT_THAT(
      Now(),
      ElementsAre(Action(EndJob{"job-1", JobState::kSucceeded, "COMPLETED", "trained 0 steps"})));
}

TEST_F(DecideTest, TheVerdictGoesBeforeTheCancellation) {
  WorkerGroup& group = AddGroup(JobState::kRunning, 1);
  state_.jobs.at("job-1").cancel_requested = true;
  EXPECT_THAT(Now(), ElementsAre(Action(StopJob{"job-1"})));
  group.verdict = Verdict{"R", "m"};
  EXPECT_THAT(Now(), ElementsAre(Action(EndJob{"job-1", JobState::kFailed, "R", "m"})));
}

TEST_F(DecideTest, ManyMissingRanksAreNotAllNamed) {
  WorkerGroup& group = AddGroup(JobState::kStarting, 5);
  group.deadline = kNow;
  EXPECT_THAT(
      Now(),
      ElementsAre(Action(EndJob{"job-1", JobState::kFailed, "START_TIMEOUT",
                                "trainers were not ready in time: rank 0 on worker a, rank 1 "
                                "on worker b, rank 2 on worker c and 2 more"})));
}

TEST_F(DecideTest, AJobThatIsOverIsDroppedWithItsLastTrainer) {
  WorkerGroup& group = AddGroup(JobState::kFailed, 2);
  group.verdict = Verdict{"R", "m"};
  group.ranks[0].gone = true;
  EXPECT_THAT(Now(), IsEmpty());
  group.ranks[1].exit.emplace();
  EXPECT_THAT(Now(), ElementsAre(Action(DropJob{"job-1"})));
}

TEST_F(DecideTest, WhatRunsOutIsPostponed) {
  AddWorker("a", kNow - absl::Seconds(10));
  AddWorker("b", kNow - absl::Hours(2));
  state_.membership.MarkLost("b", "why");
  WorkerGroup& group = AddGroup(JobState::kStarting, 1);
  group.deadline = kNow;
  group.first_echo = kNow - absl::Seconds(10);
  group.ranks[0].missing_since = kNow - absl::Seconds(10);
  state_.Postpone(absl::Seconds(1), kNow);
  EXPECT_THAT(Now(), ElementsAre(Action(ForgetWorker{"b"}))) << "it was lost before";
  state_.membership.Forget("b");
  EXPECT_THAT(Now(), IsEmpty());
  EXPECT_THAT(Decide(state_, kNow + absl::Seconds(1)), ElementsAre(Action(LoseRank{"job-1", 0})));
}

TEST_F(DecideTest, AMissingTrainerIsGivenUpAfterALease) {
  WorkerGroup& group = AddGroup(JobState::kFailed, 1);
  group.ranks[0].missing_since = kNow - absl::Milliseconds(9999);
  EXPECT_THAT(Now(), IsEmpty());
  EXPECT_THAT(Decide(state_, kNow + absl::Milliseconds(1)),
              ElementsAre(Action(LoseRank{"job-1", 0})));
}

}  // namespace
}  // namespace esteira
