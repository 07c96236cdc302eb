#include <gtest/gtest.h>

#include <string>

#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "common/plan/validate.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

// Elements of the padded flat buffers of some units, and of one shard of each.
struct Elements {
  int64_t whole = 0;
  int64_t shard = 0;
};
Elements ElementsOf(const Plan& plan, const std::vector<int>& held) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  Elements elements;
  for (int unit : held) {
    const ShardMap map(units[static_cast<size_t>(unit)].flat_elements, plan.layout.replicas);
    elements.whole += map.padded_elements();
    elements.shard += map.shard_elements();
  }
  return elements;
}

MemoryUse Count(const Plan& plan, size_t stage) { return CountMemory(plan, plan.train[stage]); }

TEST(MemoryTest, EachZeroLevelShardsMore) {
  Plan plan = TwoStagePlan();
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    plan.precision = precision;
    for (int zero = 0; zero <= 3; ++zero) {
      plan.layout.zero = zero;
      const Elements elements = ElementsOf(plan, {0, 1});
      const MemoryUse use = Count(plan, 0);
      EXPECT_EQ(use.parameters, (zero < 3 ? elements.whole : elements.shard) * BytesOf(precision));
      EXPECT_EQ(use.gradients, (zero < 2 ? elements.whole : elements.shard) * 4);
      EXPECT_EQ(use.optimizer, (zero < 1 ? elements.whole : elements.shard) * 12);
    }
  }
}

// The head end uses the owner's parameters on one rank, has its own gradients, and never optimizer
// states.
TEST(MemoryTest, EndsOfATiedTable) {
  const Plan one = VShapePlan();
  EXPECT_EQ(Count(one, 0).parameters, ElementsOf(one, {0, 3, 4}).whole * 4);
  EXPECT_EQ(Count(one, 0).gradients, ElementsOf(one, {0, 3, 4, 5}).shard * 4);
  EXPECT_EQ(Count(one, 0).optimizer, ElementsOf(one, {0, 3, 4}).shard * 12);
  Plan two = one;
  two.train[0].units = {0, 4};
  EXPECT_EQ(Count(two, 0).parameters, ElementsOf(two, {0, 4}).whole * 4);
  two.train[0].units = {3, 5};
  EXPECT_EQ(Count(two, 0).parameters, ElementsOf(two, {3, 5}).whole * 4);
  EXPECT_EQ(Count(two, 0).optimizer, ElementsOf(two, {3}).shard * 12);
}

TEST(MemoryTest, SlotsOfAllClasses) {
  Plan plan = TwoStagePlan();
  plan.train[0].slots = {};
  EXPECT_EQ(Count(plan, 0).slots, 0);
  plan.train[0].slots[0] = {{100, 3}};
  plan.train[0].slots[2] = {{1000, 2}, {10, 4}};
  EXPECT_EQ(Count(plan, 0).slots, 300 + 2000 + 40);
}

// A class is as large as the largest value that either program puts into it.
TEST(MemoryTest, SlotsAreSizedByWhatIsPutIntoThem) {
  Plan plan = OneRankPlan();
  plan.train[0].slots[2] = {{0, 1}, {0, 1}};
  plan.evaluate[0].slots = plan.train[0].slots;
  const auto saved = [&](size_t unit) {
    return SlotBytes(plan.model, plan.layout, plan.precision, MakeUnits(plan.model)[unit],
                     SlotKind::kSaved);
  };
  ASSERT_NE(saved(1), saved(2));
  std::vector<Instruction>& evaluate = plan.evaluate[0].instructions;
  for (Instruction& i : evaluate) {
    if (i.unit == 2 && i.saved >= 0) i.saved = 1;
  }
  SizeSlots(plan);
  EXPECT_EQ(plan.train[0].slots[2], (std::vector<SlotClass>{{saved(1), 1}, {saved(2), 1}}));
  EXPECT_EQ(plan.evaluate[0].slots, plan.train[0].slots);
  EXPECT_EQ(Validate(plan), absl::OkStatus());
  for (Instruction& i : evaluate) {
    if (i.unit == 2 && i.saved >= 0) i.saved = 0;
  }
  SizeSlots(plan);
  EXPECT_EQ(plan.train[0].slots[2][0].bytes, std::max(saved(1), saved(2)));
}

TEST(MemoryTest, WorkspaceOfTheLargestUnit) {
  const Plan plan = TwoStagePlan();
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  int64_t largest = 0;
  for (size_t unit : {0u, 1u}) {
    largest =
        std::max(largest, WorkspaceLayout(plan.model, units[unit], 1, 4, plan.precision).bytes);
  }
  const int64_t padded = std::max(ElementsOf(plan, {0}).whole, ElementsOf(plan, {1}).whole);
  EXPECT_EQ(Count(plan, 0).workspace, largest + ReduceScratchBytes(padded, 2, Numerics::kFast));
  EXPECT_GT(ReduceScratchBytes(padded, 2, Numerics::kFast), 0);
}

// Sums of 8 bytes instead of 4, and room for the fp32 gradient of the unit that uses the most.
TEST(MemoryTest, ExactNumericsTakeMore) {
  const Plan fast = TwoStagePlan();
  Plan exact = fast;
  exact.layout.numerics = Numerics::kExact;
  const std::vector<UnitSpec> units = MakeUnits(fast.model);
  for (size_t rank = 0; rank < 2; ++rank) {
    int64_t gradient = 0, padded = 0;
    for (int held : fast.train[rank].units) {
      padded = std::max(padded, ElementsOf(fast, {held}).whole);
      const std::vector<int>& uses = units[static_cast<size_t>(held)].uses;
      if (!uses.empty()) gradient = std::max(gradient, ElementsOf(fast, uses).whole * 4);
    }
    const MemoryUse before = Count(fast, rank);
    const MemoryUse after = Count(exact, rank);
    EXPECT_EQ(after.gradients, 2 * before.gradients);
    EXPECT_EQ(after.workspace, before.workspace + padded * 4 + gradient);
    EXPECT_GT(gradient, 0);
    EXPECT_EQ(after.parameters, before.parameters);
    EXPECT_EQ(after.optimizer, before.optimizer);
  }
}

TEST(MemoryTest, ValidatesAgainstABudget) {
  const Plan plan = TwoStagePlan();
  std::vector<int64_t> budget;
  for (size_t stage = 0; stage < 2; ++stage) budget.push_back(Count(plan, stage).total());
  EXPECT_EQ(ValidateMemory(plan, budget), absl::OkStatus());
  --budget[1];
  const absl::Status status = ValidateMemory(plan, budget);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message().find("memory: stage 1: expected at most "), 0u) << status;
  budget.pop_back();
  EXPECT_EQ(ValidateMemory(plan, budget).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace esteira
