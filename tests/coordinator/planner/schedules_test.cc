#include "coordinator/planner/schedules/schedules.h"

#include <map>

#include "gtest/gtest.h"

namespace esteira {
namespace {

std::string Text(const std::vector<ChunkOp>& ops) {
  std::string text;
  for (const ChunkOp& op : ops) {
    text += (op.op == Op::kForward ? "F" : "B") + std::to_string(op.micro_batch) + " ";
  }
  return text;
}

TEST(SchedulesTest, Gpipe) {
  const StageOps ops = GpipeSchedule(2, 3);
  EXPECT_EQ(Text(ops[0]), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(Text(ops[1]), "F0 F1 F2 B0 B1 B2 ");
}

TEST(SchedulesTest, OneForwardOneBackward) {
  const StageOps ops = OneForwardOneBackwardSchedule(3, 4);
  EXPECT_EQ(Text(ops[0]), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(Text(ops[1]), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(Text(ops[2]), "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST(SchedulesTest, FewerMicroBatchesThanStages) {
  const StageOps ops = OneForwardOneBackwardSchedule(4, 2);
  EXPECT_EQ(Text(ops[0]), "F0 F1 B0 B1 ");
  EXPECT_EQ(Text(ops[1]), "F0 F1 B0 B1 ");
  EXPECT_EQ(Text(ops[2]), "F0 F1 B0 B1 ");
  EXPECT_EQ(Text(ops[3]), "F0 B0 F1 B1 ");
}

TEST(SchedulesTest, ForwardOnly) { EXPECT_EQ(Text(ForwardOnlySchedule(2, 2)[1]), "F0 F1 "); }

TEST(SchedulesTest, EveryScheduleComputesEverythingOnceInAscendingOrder) {
  for (const Schedule& schedule : TrainingSchedules()) {
    for (int stages = 1; stages <= 9; ++stages) {
      for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        const StageOps ops = schedule.generate(stages, micro_batches);
        ASSERT_EQ(ops.size(), static_cast<size_t>(stages));
        for (int stage = 0; stage < stages; ++stage) {
          std::map<Op, int> next;
          for (const ChunkOp& op : ops[static_cast<size_t>(stage)]) {
            EXPECT_EQ(op.chunk, stage);
            EXPECT_EQ(op.micro_batch, next[op.op]++)
                << schedule.name << " " << stages << "x" << micro_batches;
          }
          EXPECT_EQ(next[Op::kForward], micro_batches);
          EXPECT_EQ(next[Op::kBackward], micro_batches);
        }
      }
    }
  }
}

TEST(SchedulesTest, RegistryKnowsItsNamesOnly) {
  ASSERT_NE(FindSchedule("gpipe"), nullptr);
  EXPECT_EQ(FindSchedule("gpipe")->generate, &GpipeSchedule);
  ASSERT_NE(FindSchedule("1f1b"), nullptr);
  EXPECT_EQ(FindSchedule("1f1b")->generate, &OneForwardOneBackwardSchedule);
  EXPECT_EQ(FindSchedule("1F1B"), nullptr);
  EXPECT_EQ(FindSchedule(""), nullptr);
  EXPECT_EQ(ScheduleNames(), "gpipe, 1f1b");
}

}  // namespace
}  // namespace esteira
