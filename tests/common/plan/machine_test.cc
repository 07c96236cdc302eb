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
  return execution.intervals[static_cast<size_t>(program.rank)][Find(program, text)];
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
    if (instruction.op == Op::kRecvAct) return program.replica == 0 ? 5.0 : 2.0;
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
  EXPECT_EQ(IntervalOf(*execution, plan.train[3], "2F0").start, 4);
}

TEST(MachineTest, CollectivesStartTogetherAndReleaseTakesNoTime) {
  const Plan plan = TwoStagePlan();
  const auto by_replica = [](const Program& program, const Instruction& instruction) {
    if (instruction.op == Op::kReduce) return 1.0;
    return IsCompute(instruction.op) ? 1.0 + program.replica : 0.0;
  };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, by_replica);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  for (const char* text : {"1REDUCE", "0REDUCE", "NORM", "1GATHER"}) {
    const Interval first = IntervalOf(*execution, plan.train[0], text);
    const Interval second = IntervalOf(*execution, plan.train[2], text);
    EXPECT_EQ(first.start, second.start) << text;
    EXPECT_EQ(first.end, second.end) << text;
  }
  EXPECT_EQ(IntervalOf(*execution, plan.train[0], "1REDUCE").start,
            IntervalOf(*execution, plan.train[2], "1B1 x2 dx1 dy0 s1").end);
  EXPECT_EQ(IntervalOf(*execution, plan.train[1], "NORM").start,
            IntervalOf(*execution, plan.train[2], "NORM").start);

  const Plan one = OneRankPlan();
  const auto all_take_time = [](const Program&, const Instruction&) { return 1.0; };
  const absl::StatusOr<Execution> alone = RunMachine(one, one.train, all_take_time);
  ASSERT_EQ(alone.status(), absl::OkStatus());
  const Interval release = IntervalOf(*alone, one.train[0], "2RELEASE p2");
  EXPECT_EQ(release.start, IntervalOf(*alone, one.train[0], "2W0 x1 s1").end);
  EXPECT_EQ(release.end, release.start);
}

// A group starts when all that any of its members waits for has ended, on any rank, and its members
// end together: after as long as they take one after the other, on the slowest rank.
TEST(MachineTest, JoinedInstructionsRunAsOne) {
  Plan plan = TwoStagePlan();
  Replace(plan, 0, "1REDUCE", "1REDUCE +");
  Replace(plan, 0, "0GATHER", "0GATHER +");
  const auto by_replica = [](const Program& program, const Instruction& instruction) {
    if (instruction.op == Op::kReduce) return 1.0 + instruction.unit + program.replica;
    return IsCompute(instruction.op) ? 1.0 + program.replica : 0.25;
  };
  const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, by_replica);
  ASSERT_EQ(execution.status(), absl::OkStatus());
  const double last = IntervalOf(*execution, plan.train[2], "0B1 dy1").end;
  EXPECT_GT(last, IntervalOf(*execution, plan.train[0], "0B1 dy1").end);
  for (const size_t rank : {0, 2}) {
    for (const char* text : {"1REDUCE +", "0REDUCE"}) {
      const Interval interval = IntervalOf(*execution, plan.train[rank], text);
      EXPECT_EQ(interval.start, last) << text;
      EXPECT_EQ(interval.end, last + 2 + 3) << text;
    }
    EXPECT_GE(IntervalOf(*execution, plan.train[rank], "NORM").start, last + 2 + 3);
    const Interval gather = IntervalOf(*execution, plan.train[rank], "0GATHER +");
    EXPECT_EQ(gather.start, IntervalOf(*execution, plan.train[rank], "1STEP").end);
    EXPECT_EQ(gather.end, gather.start + 0.5);
  }
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
      return 1.0 + 0.25 * static_cast<int>(i.op) + 0.5 * program.rank + 0.125 * (i.unit + 1);
    };
    const absl::StatusOr<Execution> execution = RunMachine(plan, plan.train, uneven);
    ASSERT_EQ(execution.status(), absl::OkStatus());
    for (const Program& program : plan.train) {
      const auto dependencies =
          Dependencies(MakeUnits(plan.model), PlacementOf(plan.layout.zero), program);
      const std::vector<Interval>& intervals =
          execution->intervals[static_cast<size_t>(program.rank)];
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
  EXPECT_EQ(execution->intervals.size(), 4u);
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
  EXPECT_THAT(message, HasSubstr("deadlock: rank 0: "));
  EXPECT_THAT(
      message,
      HasSubstr("instruction 5 (1SEND_ACT1>1) waits for 2 ranks to meet, of which 1 ever come"));
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

TEST(MachineTest, CollectivesInDifferentOrderBlock) {
  Plan plan = TwoStagePlan();
  std::swap(plan.train[2].instructions[13], plan.train[2].instructions[15]);
  EXPECT_THAT(Deadlock(plan, plan.train), HasSubstr("waits for rank 2 to reach"));
}

// The window of unit 0 is that of unit 3, which is reduced only with it.
TEST(MachineTest, AMemberOfAGroupThatNeedsTheEndOfAnotherBlocks) {
  Plan plan = VShapePlan();
  MoveBefore(plan, 0, "5REDUCE w1", "3REDUCE w0");
  EXPECT_EQ(RunMachine(plan, plan.train, Second).status(), absl::OkStatus());
  Replace(plan, 0, "3REDUCE w0", "3REDUCE w0 +");
  EXPECT_THAT(Deadlock(plan, plan.train), HasSubstr("(3REDUCE w0 +) waits for its own 0B1 dy0"));
}

TEST(MachineTest, GroupsOfDifferentSizesBlock) {
  Plan plan = TwoStagePlan();
  for (const size_t rank : {0, 2}) {
    Plan broken = plan;
    Program& program = broken.train[rank];
    program.instructions[Find(program, "0GATHER")].joined = true;
    EXPECT_THAT(Deadlock(broken, broken.train), HasSubstr("ever come"));
  }
}

TEST(MachineTest, NamesAFewRanksOnly) {
  Plan plan = OnlyExchanges(TwoStagePlan());
  plan.layout.replicas = 8;
  const Plan four = plan;
  plan.train.clear();
  for (int rank = 0; rank < 16; ++rank) {
    Program program = four.train[static_cast<size_t>(rank % 2)];
    program.rank = rank;
    program.replica = rank / 2;
    for (Instruction& instruction : program.instructions) {
      if (instruction.peer != -1) instruction.peer += 2 * program.replica;
    }
    plan.train.push_back(program);
  }
  EXPECT_EQ(RunMachine(plan, plan.train, Second).status(), absl::OkStatus());
  Remove(plan, 1, "2RECV_ACT0");
  const std::string message = Deadlock(plan, plan.train);
  EXPECT_THAT(message, HasSubstr("rank 3: "));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("rank 4: ")));
  EXPECT_THAT(message, HasSubstr("12 more ranks wait"));
}

}  // namespace
}  // namespace esteira
