#include "worker/engine/timing.h"

#include <gtest/gtest.h>

namespace esteira {
namespace {

double SecondsOf(const StepReport& report, Op op) {
  return report.op_seconds[static_cast<size_t>(op)];
}

TEST(TimingTest, DividesTheComputeQueuesTimeByWhatItWaitedFor) {
  Program program;
  program.instructions = {{.op = Op::kRecvAct},  {.op = Op::kForward}, {.op = Op::kGather},
                          {.op = Op::kBackward}, {.op = Op::kNorm},    {.op = Op::kStep}};
  const std::vector<std::vector<int32_t>> waits = {{}, {0}, {}, {2}, {3}, {4}};
  const std::vector<Interval> intervals = {{0, 2}, {2, 5}, {1, 6}, {6.5, 9}, {9, 10}, {10, 11}};
  StepReport report;
  AddTimes(program, waits, intervals, report);
  EXPECT_DOUBLE_EQ(report.step_seconds, 11);
  EXPECT_DOUBLE_EQ(report.compute_seconds, 3 + 2.5 + 1);
  EXPECT_DOUBLE_EQ(report.bubble_seconds, 2 + 1);  // RECV_ACT, NORM
  EXPECT_DOUBLE_EQ(report.exposed_shard_seconds, 1);
  EXPECT_DOUBLE_EQ(SecondsOf(report, Op::kRecvAct), 2);
  EXPECT_DOUBLE_EQ(SecondsOf(report, Op::kGather), 5);
}

TEST(TimingTest, WhatEndedBeforeTheQueueWasFreeCostsNothing) {
  Program program;
  program.instructions = {
      {.op = Op::kRecvGrad}, {.op = Op::kGather}, {.op = Op::kForward}, {.op = Op::kBackward}};
  StepReport report;
  AddTimes(program, {{}, {}, {}, {0, 1}}, {{0, 1}, {0, 2}, {0, 3}, {3, 4}}, report);
  EXPECT_DOUBLE_EQ(report.bubble_seconds, 0);
  EXPECT_DOUBLE_EQ(report.exposed_shard_seconds, 0);
  EXPECT_DOUBLE_EQ(report.compute_seconds, 4);
}

TEST(TimingTest, OfTwoWaitsTheSecondOnlyCountsWhereItOutlastsTheFirst) {
  Program program;
  program.instructions = {{.op = Op::kRecvAct}, {.op = Op::kGather}, {.op = Op::kForward}};
  StepReport report;
  AddTimes(program, {{}, {}, {0, 1}}, {{0, 3}, {0, 5}, {5, 6}}, report);
  EXPECT_DOUBLE_EQ(report.bubble_seconds, 3);
  EXPECT_DOUBLE_EQ(report.exposed_shard_seconds, 2);
}

// Its members end together, and the one that closes it runs it.
TEST(TimingTest, TheTimeOfAGroupCountsOnce) {
  Program program;
  program.instructions = {{.op = Op::kReduce, .joined = true}, {.op = Op::kReduce}};
  StepReport report;
  AddTimes(program, {{}, {}}, {{0, 5}, {2, 5}}, report);
  EXPECT_DOUBLE_EQ(SecondsOf(report, Op::kReduce), 3);
  EXPECT_DOUBLE_EQ(report.exposed_shard_seconds, 5);
}

TEST(TimingTest, CommunicationAfterTheLastComputationIsExposed) {
  Program program;
  program.instructions = {{.op = Op::kStep}, {.op = Op::kGather}};
  StepReport report;
  AddTimes(program, {{}, {0}}, {{0, 1}, {1, 4}}, report);
  EXPECT_DOUBLE_EQ(report.exposed_shard_seconds, 3);
}

}  // namespace
}  // namespace esteira
