#include "common/plan/instruction.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace esteira {
namespace {

TEST(InstructionTest, TextForm) {
  const std::pair<const char*, Instruction> texts[] = {
      {"3F0 x1 y2 s0",
       {.op = Op::kForward, .unit = 3, .micro_batch = 0, .x = 1, .y = 2, .saved = 0}},
      {"2I3", {.op = Op::kBackwardInput, .unit = 2, .micro_batch = 3}},
      {"12B7 x1 dx3 dy4 s5",
       {.op = Op::kBackward, .unit = 12, .micro_batch = 7, .x = 1, .dx = 3, .dy = 4, .saved = 5}},
      {"3SEND_ACT0>2 y2", {.op = Op::kSendAct, .unit = 3, .micro_batch = 0, .peer = 2, .y = 2}},
      {"3RECV_GRAD0<2 dy1", {.op = Op::kRecvGrad, .unit = 3, .micro_batch = 0, .peer = 2, .dy = 1}},
      {"5GATHER p0", {.op = Op::kGather, .unit = 5, .slot = 0}},
      {"5RELEASE p0", {.op = Op::kRelease, .unit = 5, .slot = 0}},
      {"5CLEAR", {.op = Op::kClear, .unit = 5}},
      {"5REDUCE w1", {.op = Op::kReduce, .unit = 5, .slot = 1}},
      {"8TIE_GRAD>3", {.op = Op::kTieGradient, .unit = 8, .peer = 3}},
      {"8TIE_GRAD", {.op = Op::kTieGradient, .unit = 8}},
      {"7TIE_PARAM>0", {.op = Op::kTieParameter, .unit = 7, .peer = 0}},
      {"NORM", {.op = Op::kNorm}},
      {"5REDUCE +", {.op = Op::kReduce, .unit = 5, .joined = true}},
      {"5REDUCE w1 +", {.op = Op::kReduce, .unit = 5, .slot = 1, .joined = true}},
      {"NORM +", {.op = Op::kNorm, .joined = true}},
      {"2147483647STEP", {.op = Op::kStep, .unit = 2147483647}},
  };
  for (const auto& [text, instruction] : texts) {
    EXPECT_EQ(ToText(instruction), text);
    const absl::StatusOr<Instruction> parsed = ParseInstruction(text);
    ASSERT_EQ(parsed.status(), absl::OkStatus()) << text;
    EXPECT_EQ(*parsed, instruction) << text;
  }
}

// Also what no good plan holds: an error must show it as it is.
TEST(InstructionTest, EveryInstructionReadsBack) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> number(-1, 12);
  for (int op = 0; op < kNumOps; ++op) {
    for (int round = 0; round < 100; ++round) {
      const Instruction instruction = {.op = static_cast<Op>(op),
                                       .unit = number(random),
                                       .micro_batch = number(random),
                                       .peer = number(random),
                                       .x = number(random),
                                       .y = number(random),
                                       .dx = number(random),
                                       .dy = number(random),
                                       .saved = number(random),
                                       .slot = number(random),
                                       .joined = number(random) > 6};
      const absl::StatusOr<Instruction> parsed = ParseInstruction(ToText(instruction));
      ASSERT_EQ(parsed.status(), absl::OkStatus());
      EXPECT_EQ(*parsed, instruction) << ToText(instruction);
    }
  }
}

TEST(InstructionTest, RefusesWithTheReason) {
  const std::pair<const char*, const char*> texts[] = {
      {"", "no such op"},
      {" ", "no such op"},
      {"3", "no such op"},
      {"3f0", "no such op"},
      {"3FORWARD0", "no such op"},
      {"-3F0", "no such op"},
      {"3F-1", "expected \">\" and a peer, or a space"},
      {"2147483648F0", "the unit is not a number below 2^31"},
      {"99999999999999999999999F0", "the unit is not a number below 2^31"},
      {"03F0", "the unit is not a number below 2^31"},
      {"3F00", "the micro-batch is not a number below 2^31"},
      {"3F2147483648", "the micro-batch is not a number below 2^31"},
      {"3SEND_ACT0<2", "expected \">\" and a peer"},
      {"3RECV_ACT0>2", "expected \"<\" and a peer"},
      {"3SEND_ACT0>", "the peer is not a number"},
      {"3SEND_ACT0>1>2", "the peer is not a number"},
      {"3F0  x1", "expected slots"},
      {"3F0 x1 ", "expected slots"},
      {"3F0 x", "slot x is not a number"},
      {"3F0 x1y2", "slot x is not a number"},
      {"3F0 x1 x1", "two slots x"},
      {"3F0 z1", "expected slots"},
      {"3F0 X1", "expected slots"},
      {"3GATHER w1", "expected slots"},
      {"3REDUCE p1", "expected slots"},
      {" +", "no such op"},
      {"3REDUCE+", "expected \">\" and a peer"},
      {"3REDUCE + +", "expected slots"},
      {"3REDUCE + w1", "expected slots"},
      {"3REDUCE  +", "expected slots"},
      {"3F0\n", "expected \">\""},
      {"3F0\tx1", "3F0\\tx1"},
  };
  for (const auto& [text, reason] : texts) {
    const absl::Status status = ParseInstruction(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(reason), absl::string_view::npos) << status;
  }
}

TEST(InstructionTest, RefusesNothingAtAll) {
  EXPECT_EQ(ParseInstruction(absl::string_view()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseInstruction("NORM ").ok());
}

TEST(InstructionTest, QueuesAndKinds) {
  EXPECT_EQ(QueueOf(Op::kClear), Queue::kCompute);
  EXPECT_EQ(QueueOf(Op::kStep), Queue::kCompute);
  EXPECT_EQ(QueueOf(Op::kNorm), Queue::kShard);
  EXPECT_EQ(QueueOf(Op::kTieParameter), Queue::kShard);
  EXPECT_EQ(QueueOf(Op::kSendGrad), Queue::kSendGrad);
  EXPECT_TRUE(IsCompute(Op::kRecompute));
  EXPECT_FALSE(IsCompute(Op::kSendAct));
  EXPECT_FALSE(IsCompute(Op::kClear));
  EXPECT_TRUE(IsPointToPoint(Op::kRecvGrad));
  EXPECT_FALSE(IsPointToPoint(Op::kGather));
  EXPECT_TRUE(IsSend(Op::kSendAct));
  EXPECT_FALSE(IsSend(Op::kRecvAct));
}

}  // namespace
}  // namespace esteira
