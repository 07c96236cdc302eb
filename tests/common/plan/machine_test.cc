#include "common/plan/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/plan/dependencies.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

double Second(const Program&, const Instruction& instruction) {
  return IsCompute(instruction.op) ? 1 : 0;
}

Interval IntervalOf(const Execution& execution, const Program& program, const std::string& text) {
  return execution.intervals[static_cast<size_t>(program.stage)][Find(program, text)];
}

// Two stages, two micro-batches, computing alone takes time: the last stage waits for two forward
// passes, the first for its backward pass.
TEST(MachineTest, TimesOfASmallPipeline) {
  const Plan plan = OnlyExchanges(TwoStagePlan());
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, Second);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const auto start = [&](size_t rank, const char* text) {
    return IntervalOf(*execution, plan.train[rank], text).start;
  };
  EXPECT_EQ(start(0, "0F0"), 0);
  EXPECT_EQ(start(0, "1F0"), 1);
  EXPECT_EQ(start(0, "1SEND_ACT0"), 2);
  EXPECT_EQ(start(1, "2RECV_ACT0"), 2);
  EXPECT_EQ(start(1, "2F0"), 2);
  EXPECT_EQ(start(1, "2B0"), 3);
  EXPECT_EQ(start(0, "1F1"), 3);
  EXPECT_EQ(start(0, "1B0"), 4);
  EXPECT_EQ(start(1, "2F1"), 4);
  EXPECT_EQ(start(0, "0B0"), 5);
  EXPECT_EQ(start(1, "2B1"), 5);
  EXPECT_EQ(start(0, "1B1"), 6);
  EXPECT_EQ(execution->makespan, 8);
}

TEST(MachineTest, AMeetingTakesAsLongAsItsSlowestMember) {
  const Plan plan = OnlyExchanges(TwoStagePlan());
  const auto slow_receive = [](const Program& program, const Instruction& instruction) {
    if (instruction.op == Op::kRecvAct) return 5.0;
    return Second(program, instruction);
  };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, slow_receive);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const Interval send = IntervalOf(*execution, plan.train[0], "1SEND_ACT0");
  EXPECT_EQ(send.start, 2);
  EXPECT_EQ(send.end, 7);
  EXPECT_EQ(IntervalOf(*execution, plan.train[1], "2F0").start, 7);
  EXPECT_EQ(IntervalOf(*execution, plan.train[1], "2RECV_ACT1").start,
            7);  // one after the other on their queue
}

// The replicas do the same, so a collective starts when one of its members can; NORM when those of
// all stages can.
TEST(MachineTest, CollectivesStartTogetherAndReleaseTakesNoTime) {
  const Plan plan = TwoStagePlan();
  const auto by_stage = [](const Program& program, const Instruction& instruction) {
    if (instruction.op == Op::kReduce) return 1.0;
    return IsCompute(instruction.op) ? 2.0 - program.stage : 0.0;
  };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, by_stage);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const Interval reduce = IntervalOf(*execution, plan.train[0], "1REDUCE");
  EXPECT_EQ(reduce.start, IntervalOf(*execution, plan.train[0], "1B1 x2 dx1 dy0 s1").end);
  EXPECT_EQ(reduce.end, reduce.start + 1);
  EXPECT_EQ(IntervalOf(*execution, plan.train[1], "NORM").start,
            IntervalOf(*execution, plan.train[0], "NORM").start);
  EXPECT_GT(IntervalOf(*execution, plan.train[1], "NORM").start,
            IntervalOf(*execution, plan.train[1], "2REDUCE").end);

  const Plan one = OneRankPlan();
  const auto all_take_time = [](const Program&, const Instruction&) { return 1.0; };
  const absl::StatusOr<Execution> alone = RunMachine(one, one.train, all_take_time);
  ASSERT_EQ(alone.status(), absl::OkStatus());
  const Interval release = IntervalOf(*alone, one.train[0], "2RELEASE p2");
  EXPECT_EQ(release.start, IntervalOf(*alone, one.train[0], "2W0 x1 s1").end);
  EXPECT_EQ(release.end, release.start);
}

// A group starts when all that any of its members waits for has ended, and its members end
// together: after as long as they take one after the other.
TEST(MachineTest, JoinedInstructionsRunAsOne) {
  Plan plan = TwoStagePlan();
  Replace(plan, 0, "1REDUCE", "1REDUCE +");
  Replace(plan, 0, "0GATHER", "0GATHER +");
  const auto seconds = [](const Program&, const Instruction& instruction) {
    if (instruction.op == Op::kReduce) return 2.0 + instruction.unit;
    return IsCompute(instruction.op) ? 1.0 : 0.25;
  };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, seconds);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const double last = IntervalOf(*execution, plan.train[0], "0B1 dy1").end;
  EXPECT_GT(last, IntervalOf(*execution, plan.train[0], "1B1 x2 dx1 dy0 s1").end);
  for (const char* text : {"1REDUCE +", "0REDUCE"}) {
    const Interval interval = IntervalOf(*execution, plan.train[0], text);
    EXPECT_EQ(interval.start, last) << text;
    EXPECT_EQ(interval.end, last + 2 + 3) << text;
  }
  EXPECT_GE(IntervalOf(*execution, plan.train[0], "NORM").start, last + 2 + 3);
  const Interval gather = IntervalOf(*execution, plan.train[0], "0GATHER +");
  EXPECT_EQ(gather.start, IntervalOf(*execution, plan.train[0], "1STEP").end);
  EXPECT_EQ(gather.end, gather.start + 0.5);
}

TEST(MachineTest, OneReplicaJoinsToo) {
  Plan plan = OneRankPlan();
  MoveBefore(plan, 0, "2REDUCE w2", "0REDUCE w0");
  Replace(plan, 0, "2REDUCE w2", "2REDUCE w2 +");
  const auto seconds = [](const Program&, const Instruction&) { return 1.0; };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, seconds);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const Interval joined = IntervalOf(*execution, plan.train[0], "2REDUCE w2 +");
  EXPECT_EQ(joined.end, joined.start + 2);
  EXPECT_EQ(joined.end, IntervalOf(*execution, plan.train[0], "0REDUCE w0").end);
}

// No instruction starts before what it waits for has ended, on any rank.
TEST(MachineTest, HonoursAllDependencies) {
  for (const Plan& plan : {TwoStagePlan(), OneRankPlan(), VShapePlan()}) {
    const auto uneven = [](const Program& program, const Instruction& i) {
      return 1.0 + 0.25 * static_cast<int>(i.op) + 0.5 * program.stage + 0.125 * (i.unit + 1);
    };
    const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, uneven);
    ASSERT_EQ(execution.status(), absl::OkStatus());
    for (const Program& program : plan.train) {
      const auto dependencies =
          Dependencies(MakeUnits(plan.model), PlacementOf(plan.layout.zero), program);
      const std::vector<Interval>& intervals =
          execution->intervals[static_cast<size_t>(program.stage)];
      for (size_t i = 0; i < dependencies.size(); ++i) {
        for (int32_t other : dependencies[i])
          EXPECT_LE(intervals[static_cast<size_t>(other)].end, intervals[i].start);
      }
    }
  }
}

TEST(MachineTest, NothingToDo) {
  Plan plan = TwoStagePlan();
  for (Program& program : plan.train) program.instructions.clear();
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, Second);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  EXPECT_EQ(execution->makespan, 0);
  EXPECT_EQ(execution->intervals.size(), 2u);
}

std::string Deadlock(const Plan& plan, const std::vector<Program>& programs) {
  const absl::Status status = RunMachine(plan, programs, Second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(MachineTest, AMissingPartnerBlocks) {
  Plan plan = OnlyExchanges(TwoStagePlan());
  Remove(plan, 1, "2RECV_ACT1");
  const std::string message = Deadlock(plan, plan.train);
  EXPECT_THAT(message, HasSubstr("deadlock: stage 0: "));
  EXPECT_THAT(
      message,
      HasSubstr("instruction 5 (1SEND_ACT1>1) waits for 2 stages to meet, of which 1 ever come"));
}

// One activation slot too few: the send would have to end before the receive that it waits for can
// begin.
TEST(MachineTest, SlotsCanBlock) {
  Plan plan = VShapePlan();
  EXPECT_EQ(RunMachine(plan, plan.evaluate, Second).status(), absl::OkStatus());
  for (Program& program : plan.evaluate) {
    for (Instruction& instruction : program.instructions) {
      if (program.stage == 0 && instruction.x == 1) instruction.x = 0;
      if (instruction.unit == 1 && instruction.micro_batch == 1) instruction.x = 2;
    }
  }
  EXPECT_THAT(Deadlock(plan, plan.evaluate),
              HasSubstr("(1RECV_ACT1<0 x2) waits for its own 2SEND_ACT0>0 y2"));
}

// The window of unit 0 is that of unit 3, which is reduced only with it.
TEST(MachineTest, AMemberOfAGroupThatNeedsTheEndOfAnotherBlocks) {
  Plan plan = VShapePlan();
  MoveBefore(plan, 0, "5REDUCE w1", "3REDUCE w0");
  EXPECT_EQ(RunMachine(plan, plan.train, Second).status(), absl::OkStatus());
  Replace(plan, 0, "3REDUCE w0", "3REDUCE w0 +");
  EXPECT_THAT(Deadlock(plan, plan.train), HasSubstr("(3REDUCE w0 +) waits for its own 0B1 dy0"));
}

// A chain of stages that only pass one activation on, from the first to the last.
TEST(MachineTest, NamesAFewStagesOnly) {
  Plan plan;
  plan.model = TinyModel(14, false);
  plan.layout.stages = 16;
  for (int stage = 0; stage < 16; ++stage) {
    Program& program = plan.train.emplace_back();
    program.stage = stage;
    program.units = {stage};
    const auto add = [&program](Op op, int peer) {
      Instruction instruction;
      instruction.op = op;
      instruction.unit = program.stage;
      instruction.micro_batch = 0;
      instruction.peer = peer;
      program.instructions.push_back(instruction);
    };
    if (stage > 0) add(Op::kRecvAct, stage - 1);
    add(Op::kForward, -1);
    if (stage < 15) add(Op::kSendAct, stage + 1);
  }
  EXPECT_EQ(RunMachine(plan, plan.train, Second).status(), absl::OkStatus());
  plan.train[0].instructions.clear();
  const std::string message = Deadlock(plan, plan.train);
  EXPECT_THAT(message, HasSubstr("stage 4: "));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("stage 5: ")));
  EXPECT_THAT(message, HasSubstr("11 more stages wait"));
}

}  // namespace
}  // namespace esteira
