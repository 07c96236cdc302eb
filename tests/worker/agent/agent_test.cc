#include "worker/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "tests/worker/agent/fake_coordinator.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

v1::CoordinatorMessage Configure(int64_t epoch, int32_t rank = 1) {
  v1::CoordinatorMessage message;
  message.mutable_configure()->set_job_id("job");
  message.mutable_configure()->set_epoch(epoch);
  message.mutable_configure()->set_rank(rank);
  return message;
}

v1::CoordinatorMessage Start(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.mutable_start()->set_job_id("job");
  message.mutable_start()->set_epoch(epoch);
  return message;
}

v1::CoordinatorMessage Abort(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.mutable_abort()->set_job_id("job");
  message.mutable_abort()->set_epoch(epoch);
  return message;
}

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    options_.session.coordinator = coordinator_.address();
    options_.session.worker_id = "w";
    options_.session.incarnation = 5;
    options_.session.first_backoff = absl::Milliseconds(1);
    options_.session.last_backoff = absl::Milliseconds(20);
    options_.host = "host";
    options_.threads = 3;
    options_.rates = {
        .flops_fp32 = 1, .flops_bf16 = 2, .memory_bytes_per_second = 3, .pass_seconds = 4};
    options_.abort_grace = kPatience;
    coordinator_.Set({.acknowledge = true});
  }
  ~AgentTest() override { Finish().IgnoreError(); }

  void Run(const std::vector<std::string>& trainer_command) {
    options_.trainer_command = trainer_command;
    agent_ = std::make_unique<Agent>(options_, metrics_, Logger(sink_));
    thread_ = std::thread([this] { result_ = agent_->Run(); });
    ASSERT_TRUE(coordinator_.AwaitStreams(1));
  }
  void RunFake(const std::string& mode) { Run({FAKE_TRAINER, mode}); }
  absl::Status Finish() {
    if (!thread_.joinable()) return result_;
    agent_->Stop();
    thread_.join();
    return result_;
  }
  std::string Metrics() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }
  v1::TrainerReport AwaitReady(int64_t epoch) {
    return coordinator_.AwaitReport([epoch](const v1::TrainerReport& report) {
      return report.has_ready() && report.epoch() == epoch;
    });
  }

  KeepingSink sink_;
  prometheus::Registry registry_;
  WorkerMetrics metrics_{registry_};
  FakeCoordinator coordinator_;
  AgentOptions options_;
  std::unique_ptr<Agent> agent_;
  absl::Status result_;
  std::thread thread_;
};

TEST_F(AgentTest, ATrainersLifeFromConfigureToItsExit) {
  RunFake("obedient");
  coordinator_.Send(Configure(3));
  const v1::TrainerReport ready = AwaitReady(3);
  EXPECT_EQ(ready.job_id(), "job");
  EXPECT_EQ(ready.rank(), 1);
  EXPECT_EQ(ready.ready().address(), "address");
  coordinator_.Send(Start(2));  // not of this epoch: not passed on
  coordinator_.Send(Start(3));
  EXPECT_TRUE(coordinator_.Await([](const FakeCoordinator::Streams& streams) {
    const auto& messages = streams[0].messages;
    return std::any_of(messages.begin(), messages.end(), [](const v1::WorkerMessage& message) {
      return message.report().step().record().step() == 3;
    });
  })) << "the step of epoch 3 alone is reported";
  coordinator_.Send(Abort(3));
  const v1::TrainerReport exit = coordinator_.AwaitExit(3);
  EXPECT_EQ(exit.job_id(), "job");
  EXPECT_EQ(exit.rank(), 1);
  EXPECT_EQ(exit.exited().exit_code(), 7);
  EXPECT_EQ(exit.exited().message(), "trainer exited with code 7");
  EXPECT_TRUE(Finish().ok());
  int steps = 0;
  const FakeCoordinator::Streams streams = coordinator_.streams();
  for (const v1::WorkerMessage& message : streams[0].messages) {
    steps += message.report().has_step();
    EXPECT_FALSE(message.report().has_checkpoint_save()) << "the daemon's own";
  }
  EXPECT_EQ(steps, 3);
  EXPECT_THAT(Metrics(), HasSubstr("esteira_worker_checkpoint_seconds_sum 4"));
  EXPECT_THAT(Metrics(), HasSubstr("esteira_worker_checkpoint_stall_seconds_sum 1"));
  EXPECT_THAT(Metrics(), HasSubstr("esteira_worker_dropped_messages_total 5"));
}

TEST_F(AgentTest, RegistersWhatItIs) {
  RunFake("obedient");
  const v1::WorkerMessage hello = coordinator_.streams()[0].messages[0];
  EXPECT_EQ(hello.worker_id(), "w");
  EXPECT_EQ(hello.incarnation(), 5u);
  EXPECT_EQ(hello.register_().host(), "host");
  EXPECT_EQ(hello.register_().threads(), 3);
  EXPECT_EQ(hello.register_().flops_fp32(), 1);
  EXPECT_EQ(hello.register_().flops_bf16(), 2);
  EXPECT_EQ(hello.register_().memory_bytes_per_second(), 3);
  EXPECT_EQ(hello.register_().pass_seconds(), 4);
  EXPECT_EQ(hello.register_().job_id(), "");
}

TEST_F(AgentTest, RefusalEndsRunWithItsReason) {
  coordinator_.Set({.refusal = "two of that name"});
  RunFake("obedient");
  thread_.join();
  EXPECT_EQ(result_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("two of that name"));
}

TEST_F(AgentTest, AnAbortKillsAfterTheGrace) {
  options_.abort_grace = absl::Milliseconds(30);
  RunFake("stubborn");
  coordinator_.Send(Configure(1));
  ASSERT_TRUE(AwaitReady(1).has_ready());
  coordinator_.Send(Abort(1));
  const v1::TrainerReport exit = coordinator_.AwaitExit(1);
  EXPECT_EQ(exit.exited().signal(), SIGKILL);
  EXPECT_THAT(exit.exited().message(), HasSubstr("SIGKILL"));
}

TEST_F(AgentTest, ATrainerThatNeverReadsCannotHoldTheDaemon) {
  options_.abort_grace = absl::Milliseconds(30);
  RunFake("deaf");
  v1::CoordinatorMessage large = Configure(1);
  large.mutable_configure()->mutable_spec()->set_name(std::string(2 << 20, 'x'));
  coordinator_.Send(large);
  ASSERT_TRUE(sink_.Await("trainer started"));
  coordinator_.Send(Abort(1));
  EXPECT_EQ(coordinator_.AwaitExit(1).exited().signal(), SIGKILL);
}

TEST_F(AgentTest, AnAbortOfWhatDoesNotRunIsAnsweredWithAnExit) {
  RunFake("obedient");
  coordinator_.Send(Abort(9));
  const v1::TrainerReport exit = coordinator_.AwaitExit(9);
  EXPECT_EQ(exit.job_id(), "job");
  EXPECT_THAT(exit.exited().message(), HasSubstr("no trainer of this epoch"));
}

TEST_F(AgentTest, ANewEpochReplacesATrainerThatStillEnds) {
  RunFake("stubborn");
  coordinator_.Send(Configure(1));
  ASSERT_TRUE(AwaitReady(1).has_ready());
  coordinator_.Send(Abort(1));  // the grace is long: it is still ending when the next one comes
  coordinator_.Send(Configure(2, 4));
  EXPECT_EQ(AwaitReady(2).rank(), 4);
  const v1::TrainerReport exit = coordinator_.AwaitExit(1);
  EXPECT_EQ(exit.exited().signal(), SIGKILL);
  EXPECT_EQ(exit.rank(), 1);
}

TEST_F(AgentTest, AnAbortedEpochThatWaitedForItsTurnIsAnsweredWithItsOwnRank) {
  options_.abort_grace = absl::Milliseconds(30);
  RunFake("stubborn");
  coordinator_.Send(Configure(1));
  ASSERT_TRUE(AwaitReady(1).has_ready());
  coordinator_.Send(Configure(2, 4));
  coordinator_.Send(Abort(2));
  EXPECT_EQ(coordinator_.AwaitExit(2).rank(), 4);
}

TEST_F(AgentTest, ATrainerOutlivesABreakOfTheStream) {
  RunFake("obedient");
  coordinator_.Send(Configure(6));
  ASSERT_TRUE(AwaitReady(6).has_ready());
  coordinator_.Break();
  ASSERT_TRUE(coordinator_.AwaitStreams(2));
  const v1::Register again = coordinator_.streams()[1].messages[0].register_();
  EXPECT_EQ(again.job_id(), "job");
  EXPECT_EQ(again.epoch(), 6);
  EXPECT_EQ(again.rank(), 1);
  coordinator_.Send(Start(6));
  EXPECT_TRUE(coordinator_
                  .AwaitReport([](const v1::TrainerReport& report) {
                    return report.step().record().step() == 3;
                  })
                  .has_step());
}

TEST_F(AgentTest, WithoutACoordinatorForTooLongTheTrainerIsKilled) {
  options_.orphan_timeout = absl::Milliseconds(50);
  RunFake("stubborn");
  coordinator_.Send(Configure(1));
  ASSERT_TRUE(AwaitReady(1).has_ready());
  coordinator_.Set({.answer = false});
  coordinator_.Break();
  ASSERT_TRUE(sink_.Await("no coordinator for too long"));
  ASSERT_TRUE(sink_.Await("trainer killed by signal 9"));
  coordinator_.Set({.acknowledge = true});
  coordinator_.Break();
  EXPECT_EQ(coordinator_.AwaitExit(1).exited().signal(), SIGKILL);
  EXPECT_EQ(coordinator_.streams().back().messages[0].register_().job_id(), "");
}

TEST_F(AgentTest, StopKillsTheTrainerAndReportsItsExitFirst) {
  RunFake("stubborn");
  coordinator_.Send(Configure(1));
  ASSERT_TRUE(AwaitReady(1).has_ready());
  EXPECT_TRUE(Finish().ok());
  bool reported = false;  // no waiting: it is there when Run has returned
  const FakeCoordinator::Streams streams = coordinator_.streams();
  for (const v1::WorkerMessage& message : streams[0].messages)
    reported |= message.report().exited().signal() == SIGKILL;
  EXPECT_TRUE(reported);
}

TEST_F(AgentTest, StopWithoutATrainerEndsAtOnce) {
  RunFake("obedient");
  EXPECT_TRUE(Finish().ok());
}

TEST_F(AgentTest, ATrainerThatCannotBeStartedIsReportedAsAnExit) {
  Run({"/nowhere/trainer"});
  coordinator_.Send(Configure(1));
  const v1::TrainerReport exit = coordinator_.AwaitExit(1);
  EXPECT_EQ(exit.exited().exit_code(), 1);
  EXPECT_THAT(exit.exited().message(), HasSubstr("/nowhere/trainer"));
}

TEST_F(AgentTest, LinesThatDoNotFitAreCounted) {
  options_.session.kept_log_bytes = 0;
  Run({"/bin/sh", "-c", "printf 'a\nb\n'; exit 4"});
  coordinator_.Send(Configure(1));
  EXPECT_EQ(coordinator_.AwaitExit(1).exited().exit_code(), 4);
  const v1::TrainerReport note =
      coordinator_.AwaitReport([](const v1::TrainerReport& any) { return any.has_log(); });
  EXPECT_THAT(note.log().text(), HasSubstr("2 lines were dropped"));
  EXPECT_EQ(note.rank(), 1);
  EXPECT_THAT(Metrics(), HasSubstr("esteira_worker_dropped_log_lines_total 2"));
}

TEST_F(AgentTest, OutputBecomesLogLinesWhateverItsBytes) {
  Run({"/bin/sh", "-c", "printf 'bad \\377 byte\\n'; exit 4"});
  coordinator_.Send(Configure(1));
  EXPECT_EQ(coordinator_.AwaitExit(1).exited().exit_code(), 4);
  const v1::TrainerReport report =
      coordinator_.AwaitReport([](const v1::TrainerReport& any) { return any.has_log(); });
  EXPECT_EQ(report.log().text(), "bad \xef\xbf\xbd byte");
  EXPECT_EQ(report.log().worker(), "w");
  EXPECT_EQ(report.log().rank(), 1);
  EXPECT_GT(report.log().time().seconds(), 0);
  EXPECT_EQ(coordinator_.streams().size(), 1u) << "the stream has not broken";
}

}  // namespace
}  // namespace esteira
