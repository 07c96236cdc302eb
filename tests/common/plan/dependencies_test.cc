#include "common/plan/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The texts of what the instruction with this text waits for.
class Waits {
 public:
  Waits(const Plan& plan, Program program)
      : program_(std::move(program)),
        dependencies_(
            Dependencies(MakeUnits(plan.model), PlacementOf(plan.layout.zero), program_)) {}

  std::vector<std::string> Of(const std::string& text) const {
    std::vector<std::string> texts;
    for (int32_t index : dependencies_[Find(program_, text)]) {
      texts.push_back(ToText(program_.instructions[static_cast<size_t>(index)]));
    }
    return texts;
  }

 private:
  Program program_;
  std::vector<std::vector<int32_t>> dependencies_;
};

// A program of one rank with these lines, for a plan of two blocks at some ZeRO level.
Waits WaitsOf(int zero, bool tied, std::vector<int> units, const std::vector<std::string>& lines) {
  Plan plan;
  plan.model = TinyModel(2, tied);
  plan.layout.zero = zero;
  Program program;
  program.units = std::move(units);
  for (const std::string& line : lines)
    program.instructions.push_back(ParseInstruction(line).value());
  return Waits(plan, program);
}

TEST(DependenciesTest, DataFlowThroughSlots) {
  const Plan plan = TwoStagePlan();
  const Waits waits(plan, plan.train[0]);
  EXPECT_THAT(waits.Of("0F0 y0"), IsEmpty());
  EXPECT_THAT(waits.Of("1F0 x0 y1 s0"), IsEmpty());  // its input comes from its own queue
  EXPECT_THAT(waits.Of("1SEND_ACT0 y1"), ElementsAre("1F0 x0 y1 s0"));
  EXPECT_THAT(waits.Of("1F1 x2 y1 s1"), ElementsAre("1SEND_ACT0>1 y1"));  // write after read
  EXPECT_THAT(waits.Of("1RECV_GRAD0 dy0"), IsEmpty());
  EXPECT_THAT(waits.Of("1B0 x0 dx1 dy0 s0"), ElementsAre("1RECV_GRAD0<1 dy0"));
  EXPECT_THAT(waits.Of("1RECV_GRAD1 dy0"), ElementsAre("1B0 x0 dx1 dy0 s0"));
  EXPECT_THAT(waits.Of("1REDUCE"), ElementsAre("1B1 x2 dx1 dy0 s1"));
  EXPECT_THAT(waits.Of("NORM"), ElementsAre("0B1 dy1"));
  EXPECT_THAT(waits.Of("0STEP"), ElementsAre("NORM"));
  EXPECT_THAT(waits.Of("1GATHER"), ElementsAre("1STEP"));
}

// Before slots are numbered a value waits for the one that makes it, and for nothing else.
TEST(DependenciesTest, DataFlowWithoutSlots) {
  const Plan plan = OnlyExchanges(TwoStagePlan());
  const Waits first(plan, plan.train[0]);
  EXPECT_THAT(first.Of("1SEND_ACT1"), ElementsAre("1F1"));
  EXPECT_THAT(first.Of("1F1"), IsEmpty());
  EXPECT_THAT(first.Of("1B1"), ElementsAre("1RECV_GRAD1<1"));
  EXPECT_THAT(first.Of("1RECV_GRAD1"), IsEmpty());
  const Waits last(plan, plan.train[1]);
  EXPECT_THAT(last.Of("2F1"), ElementsAre("2RECV_ACT1<0"));
  EXPECT_THAT(last.Of("2SEND_GRAD0"), ElementsAre("2B0"));
}

TEST(DependenciesTest, NormOfAnEvaluationWaitsForTheLastForwardPass) {
  const Plan plan = TwoStagePlan();
  EXPECT_THAT(Waits(plan, plan.evaluate[1]).Of("NORM"), ElementsAre("2F1 x0 s0"));
}

TEST(DependenciesTest, GatheredParameters) {
  const Waits waits = WaitsOf(3, false, {0, 1, 2, 3},
                              {"1GATHER p0", "1F0 x0 y1 s0", "1RELEASE p0", "2GATHER p1",
                               "2F0 x1 y2 s1", "3GATHER p0", "3F0 x2 s2", "1STEP", "1GATHER p1"});
  EXPECT_THAT(waits.Of("1F0 x0 y1 s0"), ElementsAre("1GATHER p0"));
  EXPECT_THAT(waits.Of("1RELEASE p0"), ElementsAre("1GATHER p0", "1F0 x0 y1 s0"));
  EXPECT_THAT(waits.Of("2GATHER p1"), IsEmpty());
  EXPECT_THAT(waits.Of("3GATHER p0"),
              ElementsAre("1F0 x0 y1 s0"));  // who used the slot before, not the RELEASE
  EXPECT_THAT(waits.Of("1STEP"), ElementsAre("1GATHER p0"));  // reads the shard that STEP writes
  EXPECT_THAT(waits.Of("1GATHER p1"),
              ElementsAre("1STEP"));  // after the compute queue's last word on unit 1
}

TEST(DependenciesTest, WindowsAndSums) {
  const Waits waits = WaitsOf(2, false, {1},
                              {"1CLEAR w0", "1B0 x0 dx0 dy1 s0", "1REDUCE w0", "1CLEAR w1",
                               "1W1 x0 dy1 s0", "1REDUCE w1", "1CLEAR w0", "NORM", "1STEP"});
  EXPECT_THAT(waits.Of("1REDUCE w0"), ElementsAre("1B0 x0 dx0 dy1 s0"));
  EXPECT_THAT(waits.Of("1CLEAR w1"), IsEmpty());
  EXPECT_THAT(waits.Of("1W1 x0 dy1 s0"), IsEmpty());
  EXPECT_THAT(waits.Of("1REDUCE w1"), ElementsAre("1W1 x0 dy1 s0"));
  EXPECT_THAT(waits.Of("1STEP"), ElementsAre("NORM"));
  // The window lies in the sums: the next CLEAR waits for the reduction of the window before.
  const Waits sums =
      WaitsOf(0, false, {1}, {"1CLEAR", "1B0 x0 dx0 dy1 s0", "1REDUCE", "1CLEAR x7"});
  EXPECT_THAT(sums.Of("1CLEAR x7"), ElementsAre("1REDUCE"));
}

// The first CLEAR of "1CLEAR w0" above opens the window that the next B adds to, whichever slot
// another unit uses.
TEST(DependenciesTest, TiedTable) {
  // Both ends on one rank (embedding 0, head 3, ends 4 and 5).
  const std::vector<std::string> lines = {"4GATHER p0", "3GATHER p1", "0F0 y0",        "3F0 x1 s1",
                                          "5CLEAR w0",  "3CLEAR w1",  "3B0 x1 dx1 s1", "5REDUCE w0",
                                          "4REDUCE w2", "5TIE_GRAD",  "NORM",          "4STEP"};
  const Waits one = WaitsOf(3, true, {0, 3, 4, 5}, lines);
  EXPECT_THAT(one.Of("3F0 x1 s1"), ElementsAre("3GATHER p1"));
  EXPECT_THAT(one.Of("5REDUCE w0"), ElementsAre("3B0 x1 dx1 s1"));
  EXPECT_THAT(one.Of("4STEP"), ElementsAre("NORM"));
  // The head end alone: its own parameters, written by the copy.
  const Waits head = WaitsOf(
      3, true, {3, 5}, {"5GATHER p0", "3GATHER p1", "3F0 x1 s1", "5TIE_PARAM>0", "5GATHER p2"});
  EXPECT_THAT(head.Of("3F0 x1 s1"), ElementsAre("3GATHER p1"));
  const Waits owner =
      WaitsOf(0, true, {0, 4}, {"4REDUCE", "4TIE_GRAD>1", "NORM", "4STEP", "4TIE_PARAM>1"});
  EXPECT_THAT(owner.Of("4TIE_PARAM"), ElementsAre("4STEP"));
}

// What the list of waits cannot show because the queue's order already holds it.
TEST(DependenciesTest, AccessesOfATiedTable) {
  const std::vector<UnitSpec> units = MakeUnits(TinyModel(2, true));
  Program program;
  program.units = {0, 3, 4, 5};
  for (const char* line : {"5TIE_GRAD", "4TIE_PARAM>1", "5TIE_GRAD>1"}) {
    program.instructions.push_back(ParseInstruction(line).value());
  }
  const auto accesses = Accesses(units, PlacementOf(0), program);
  ASSERT_EQ(accesses[0].size(), 2u);
  EXPECT_EQ(accesses[0][0].index, 5);
  EXPECT_FALSE(accesses[0][0].write);
  EXPECT_EQ(accesses[0][1].index, 4);
  EXPECT_TRUE(accesses[0][1].write);
  ASSERT_EQ(accesses[1].size(), 1u);
  EXPECT_EQ(accesses[1][0].kind, ResourceKind::kParameters);
  EXPECT_FALSE(accesses[1][0].write);
  ASSERT_EQ(accesses[2].size(), 1u);
  EXPECT_EQ(ParametersUnit(units, {0, 3, 4, 5}, 5), 4);
  EXPECT_EQ(ParametersUnit(units, {3, 5}, 5), 5);
  EXPECT_EQ(ParametersUnit(units, {0, 4}, 4), 4);
}

TEST(DependenciesTest, EmptyProgram) {
  EXPECT_THAT(Dependencies(MakeUnits(TinyModel(1, false)), PlacementOf(0), Program()), IsEmpty());
}

}  // namespace
}  // namespace esteira
