#include "worker/engine/slot_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace esteira {
namespace {

using ::testing::HasSubstr;

// One slot of each kind, and a step that fills and empties every one of them.
Program FullStep() {
  Program program;
  program.slots.fill({{.bytes = 64, .count = 1}});
  program.slots[static_cast<size_t>(SlotKind::kActivation)].push_back({.bytes = 32, .count = 1});
  program.slots[static_cast<size_t>(SlotKind::kGradient)][0].count = 2;
  program.instructions = {{.op = Op::kGather, .slot = 0},
                          {.op = Op::kRecvAct, .x = 0},
                          {.op = Op::kForward, .x = 0, .y = 1},
                          {.op = Op::kSendAct, .y = 1},
                          {.op = Op::kRecvGrad, .dy = 1},
                          {.op = Op::kClear, .slot = 0},
                          {.op = Op::kRecompute, .x = 0, .saved = 0},
                          {.op = Op::kBackwardInput, .x = 0, .dx = 0, .dy = 1, .saved = 0},
                          {.op = Op::kBackwardWeight, .x = 0, .dy = 1, .saved = 0},
                          {.op = Op::kReduce, .slot = 0},
                          {.op = Op::kSendGrad, .dx = 0},
                          {.op = Op::kRelease, .slot = 0},
                          {.op = Op::kNorm}};
  return program;
}

absl::Status Check(const Program& program, bool evaluate = false) {
  SlotLedger ledger(program);
  for (const Instruction& instruction : program.instructions) ledger.Enter(instruction, evaluate);
  return ledger.CheckEmpty();
}

TEST(SlotLedgerTest, AFullStepLeavesEverySlotEmpty) { EXPECT_TRUE(Check(FullStep()).ok()); }

TEST(SlotLedgerTest, WithoutAnyOfItsEndsASlotIsReported) {
  for (Op end : {Op::kSendAct, Op::kBackwardWeight, Op::kReduce, Op::kSendGrad, Op::kRelease}) {
    Program program = FullStep();
    std::erase_if(program.instructions, [end](const Instruction& i) { return i.op == end; });
    const absl::Status status = Check(program);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << OpName(end);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not empty at the end")) << OpName(end);
  }
}

TEST(SlotLedgerTest, EvaluateEndsASlotWithItsForwardPass) {
  Program program = FullStep();
  program.instructions = {{.op = Op::kRecvAct, .x = 0},
                          {.op = Op::kForward, .x = 0, .y = 1, .saved = 0},
                          {.op = Op::kForward, .x = 1, .saved = 0}};
  EXPECT_TRUE(Check(program, /*evaluate=*/true).ok());
  EXPECT_FALSE(Check(program, /*evaluate=*/false).ok());
}

}  // namespace
}  // namespace esteira
