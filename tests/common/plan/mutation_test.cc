// Damages good plans in every place, one instruction at a time. Validate must refuse each damage
// that changes what a step means, and accept reorderings that change nothing. What a plan means is
// found out by running it on symbols.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/dependencies.h"
#include "common/plan/validate.h"
#include "coordinator/planner/lowering/lowering.h"
#include "tests/common/plan/symbolic_run.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

struct Case {
  const char* name;
  const char* schedule;
  int zero;
  bool tied;
  int reduce_every;
  int gather_for;
  bool recompute;
  int stages;
  int chunks = 1;
};

// Two replicas, three micro-batches each, the last one of them empty; two blocks.
Plan MakeGoodPlan(const Case& c) {
  Layout layout;
  layout.schedule = c.schedule;
  layout.zero = c.zero;
  layout.stages = c.stages;
  layout.SetPolicies({c.reduce_every, c.gather_for, c.recompute});
  layout.replicas = 2;
  layout.chunks_per_stage = c.chunks;
  for (int chunk = 0; chunk <= layout.num_chunks(); ++chunk) {
    layout.boundaries.push_back(4 * chunk / layout.num_chunks());
  }
  layout.global_batch_size = 5;
  layout.micro_batch_size = 1;
  layout.sequence_length = 4;
  const absl::StatusOr<Plan> generated = Generate(TinyModel(2, c.tied), layout, Precision::kFp32);
  EXPECT_EQ(generated.status(), absl::OkStatus());
  const absl::StatusOr<Plan> plan = Lower(*generated);
  EXPECT_EQ(plan.status(), absl::OkStatus());
  return *plan;
}

using State = std::optional<std::vector<uint64_t>>;

using Instructions = std::vector<Instruction>;

// A good plan, to be damaged and mended again in the program of one stage.
class Damage {
 public:
  Damage(const Plan& good, bool train, size_t stage)
      : good_(good),
        plan_(good),
        train_(train),
        stage_(stage),
        meaning_(RunSymbols(good_, train ? good_.train : good_.evaluate, 1)) {
    EXPECT_TRUE(meaning_.has_value());
  }

  int refused() const { return refused_; }
  int harmless() const { return harmless_; }
  int independent() const { return independent_; }

  void All() {
    DropEach();
    DropEachMeeting();
    DuplicateEach();
    SwapEach(1);
    SwapEach(2);
    DelayEach(5);
    RenumberEach();
    ReplaceEachOp();
    JoinEach();
    SwapIndependentNeighbours();
  }

 private:
  void DropEach() {
    for (size_t i = 0; i < Good().size(); ++i) {
      Try([i](Instructions& all) { all.erase(all.begin() + static_cast<ptrdiff_t>(i)); }, "without",
          i);
    }
  }

  // With all that they would have met, on whichever stage.
  void DropEachMeeting() {
    for (size_t i = 0; i < Good().size(); ++i) {
      const Instruction dropped = Good()[i];
      if (!IsPointToPoint(dropped.op) && QueueOf(dropped.op) != Queue::kShard) continue;
      for (Program& program : Programs()) {
        std::erase_if(program.instructions,
                      [&](const Instruction& other) { return Meets(dropped, other); });
      }
      Judge("without all of", i);
    }
  }

  static bool Meets(const Instruction& a, const Instruction& b) {
    if (a.micro_batch != b.micro_batch) return false;
    if (a.op == b.op) return a.unit == b.unit || !IsPointToPoint(a.op);
    const auto act = [](const Instruction& i) {
      return i.op == Op::kSendAct ? i.unit : i.unit - 1;
    };
    const auto grad = [](const Instruction& i) {
      return i.op == Op::kSendGrad ? i.unit : i.unit + 1;
    };
    const auto is_act = [](Op op) { return op == Op::kSendAct || op == Op::kRecvAct; };
    if (!IsPointToPoint(a.op) || !IsPointToPoint(b.op) || is_act(a.op) != is_act(b.op))
      return false;
    return is_act(a.op) ? act(a) == act(b) : grad(a) == grad(b);
  }

  void DuplicateEach() {
    for (size_t i = 0; i < Good().size(); ++i) {
      for (const size_t at : {i, Good().size()}) {
        const auto edit = [i, at](Instructions& all) {
          const Instruction twice = all[i];
          all.insert(all.begin() + static_cast<ptrdiff_t>(at), twice);
        };
        Try(edit, "with twice", i);
      }
    }
  }

  // Each instruction `distance` places later, the ones between as they were.
  void DelayEach(size_t distance) {
    for (size_t i = 0; i + distance < Good().size(); ++i) {
      const auto edit = [i, distance](Instructions& all) {
        const auto first = all.begin() + static_cast<ptrdiff_t>(i);
        std::rotate(first, first + 1, first + static_cast<ptrdiff_t>(distance) + 1);
      };
      Try(edit, "with delayed", i);
    }
  }

  void SwapEach(size_t distance) {
    for (size_t i = 0; i + distance < Good().size(); ++i) {
      Try([i, distance](Instructions& all) { std::swap(all[i], all[i + distance]); },
          "with swapped", i);
    }
  }

  void RenumberEach() {
    constexpr std::array<int32_t Instruction::*, 9> kFields = {
        &Instruction::unit, &Instruction::micro_batch, &Instruction::peer,
        &Instruction::x,    &Instruction::y,           &Instruction::dx,
        &Instruction::dy,   &Instruction::saved,       &Instruction::slot};
    for (size_t i = 0; i < Good().size(); ++i) {
      for (int32_t Instruction::*field : kFields) {
        for (const int32_t change : {-1, 1}) {
          if (Good()[i].*field + change < -1) continue;
          Try([=](Instructions& all) { all[i].*field += change; }, "with renumbered", i);
        }
      }
    }
  }

  void ReplaceEachOp() {
    for (size_t i = 0; i < Good().size(); ++i) {
      for (int op = 0; op < kNumOps; ++op) {
        if (Good()[i].op == static_cast<Op>(op)) continue;
        Try([i, op](Instructions& all) { all[i].op = static_cast<Op>(op); }, "with another op for",
            i);
      }
    }
  }

  // Or no longer.
  void JoinEach() {
    for (size_t i = 0; i < Good().size(); ++i) {
      Try([i](Instructions& all) { all[i].joined = !all[i].joined; }, "with joined", i);
    }
  }

  // Neighbours that are on different queues and do not depend on each other may change places.
  void SwapIndependentNeighbours() {
    for (size_t i = 0; i + 1 < Good().size(); ++i) {
      if (!IsIndependent(i)) continue;
      std::swap(Programs()[stage_].instructions[i], Programs()[stage_].instructions[i + 1]);
      EXPECT_EQ(Validate(plan_), absl::OkStatus())
          << ToText(Good()[i]) << " and " << ToText(Good()[i + 1]) << " are independent";
      ++independent_;
      Mend();
    }
  }

  const Program& GoodProgram() const { return (train_ ? good_.train : good_.evaluate)[stage_]; }
  const Instructions& Good() const { return GoodProgram().instructions; }
  std::vector<Program>& Programs() { return train_ ? plan_.train : plan_.evaluate; }
  void Mend() { Programs() = train_ ? good_.train : good_.evaluate; }

  template <typename Edit>
  void Try(const Edit& edit, const char* what, size_t index) {
    edit(Programs()[stage_].instructions);
    Judge(what, index);
  }

  // Validate refuses the damaged plan, or it means what the good one does.
  void Judge(const char* what, size_t index) {
    const absl::Status status = Validate(plan_);
    if (!status.ok()) {
      ++refused_;
      EXPECT_NE(status.message().find("stage "), absl::string_view::npos) << status;
    } else {
      ++harmless_;
      for (const uint64_t seed : {2, 3, 4}) {
        EXPECT_EQ(RunSymbols(plan_, Programs(), seed), meaning_)
            << "Validate accepts stage " << stage_ << " " << what << " " << index << ": "
            << ToText(Good()[index]);
      }
    }
    Mend();
  }

  // Whether the program means the same with instructions i and i + 1 swapped, by Dependencies
  // alone. Instructions that open and close a buffer of one unit do not count: Validate wants them
  // in order even where nothing waits.
  bool IsIndependent(size_t i) {
    const Instruction& a = Good()[i];
    const Instruction& b = Good()[i + 1];
    const auto is_bookkeeping = [](Op op) { return op == Op::kRelease || op == Op::kClear; };
    if (QueueOf(a.op) == QueueOf(b.op) || is_bookkeeping(a.op) || is_bookkeeping(b.op))
      return false;
    const std::vector<UnitSpec> units = MakeUnits(good_.model);
    const Placement placement = PlacementOf(good_.layout.zero);
    Program after = GoodProgram();
    std::swap(after.instructions[i], after.instructions[i + 1]);
    const auto swapped = [i](int32_t index) {
      if (index == static_cast<int32_t>(i)) return index + 1;
      return index == static_cast<int32_t>(i + 1) ? index - 1 : index;
    };
    const auto old_dependencies = Dependencies(units, placement, GoodProgram());
    const auto new_dependencies = Dependencies(units, placement, after);
    for (size_t n = 0; n < old_dependencies.size(); ++n) {
      std::vector<int32_t> expected;
      for (int32_t other : old_dependencies[n]) expected.push_back(swapped(other));
      std::sort(expected.begin(), expected.end());
      if (new_dependencies[static_cast<size_t>(swapped(static_cast<int32_t>(n)))] != expected)
        return false;
    }
    return true;
  }

  const Plan good_;
  Plan plan_;
  const bool train_;
  const size_t stage_;
  const State meaning_;
  int refused_ = 0;
  int harmless_ = 0;
  int independent_ = 0;
};

class MutationTest : public testing::TestWithParam<Case> {};

// Whatever order queues and ranks take turns in, a good plan ends in the same state.
TEST_P(MutationTest, GoodPlansHaveOneMeaning) {
  const Plan plan = MakeGoodPlan(GetParam());
  for (const std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    const State meaning = RunSymbols(plan, *programs, 1);
    ASSERT_TRUE(meaning.has_value());
    for (uint64_t seed = 2; seed < 30; ++seed)
      EXPECT_EQ(RunSymbols(plan, *programs, seed), meaning);
  }
}

TEST_P(MutationTest, NoDamageOfTrainProgramsPasses) {
  const Plan plan = MakeGoodPlan(GetParam());
  int independent = 0;
  for (size_t stage = 0; stage < plan.train.size(); ++stage) {
    Damage damage(plan, true, stage);
    damage.All();
    EXPECT_GT(damage.refused(), 10 * damage.harmless());
    independent += damage.independent();
  }
  EXPECT_GT(independent, 0);
}

TEST_P(MutationTest, NoDamageOfEvaluateProgramsPasses) {
  const Plan plan = MakeGoodPlan(GetParam());
  for (size_t stage = 0; stage < plan.evaluate.size(); ++stage) {
    Damage damage(plan, false, stage);
    damage.All();
    EXPECT_GT(damage.refused(), damage.harmless());
  }
}

// With what the planner's schedules do not have, as its passes do not.
TEST(HandMadeMutationTest, NoDamagePasses) {
  for (const Plan& plan : {TwoStagePlan(), OneRankPlan(), VShapePlan()}) {
    for (const bool train : {true, false}) {
      for (size_t stage = 0; stage < plan.train.size(); ++stage) Damage(plan, train, stage).All();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MutationTest,
    testing::Values(Case{"gpipe_zero0", "gpipe", 0, false, kAll, 1, false, 2},
                    Case{"gpipe_zero1_windows", "gpipe", 1, false, 1, 1, false, 2},
                    Case{"gpipe_zero3_tied", "gpipe", 3, true, 2, 1, true, 2},
                    Case{"1f1b_zero0_tied_windows", "1f1b", 0, true, 2, 1, false, 2},
                    Case{"1f1b_zero1_tied", "1f1b", 1, true, kAll, 1, true, 2},
                    Case{"1f1b_zero2", "1f1b", 2, true, kAll, 1, false, 2},
                    Case{"1f1b_zero3", "1f1b", 3, false, 1, 1, false, 2},
                    Case{"1f1b_zero3_tied_gathered", "1f1b", 3, true, kAll, kAll, false, 2},
                    Case{"zb_h1_zero2", "zb_h1", 2, true, 1, 1, false, 2},
                    Case{"zb_h2_zero0", "zb_h2", 0, false, kAll, 1, true, 2},
                    Case{"interleaved_zero3", "interleaved", 3, false, 2, 2, false, 2, 2},
                    Case{"zb_v_zero1_tied", "zb_v", 1, true, kAll, 1, false, 2, 2},
                    Case{"v_half_zero3_tied", "v_half", 3, true, 1, 1, false, 2, 2},
                    Case{"v_min_zero2_windows", "v_min", 2, false, 2, 1, false, 2, 2},
                    Case{"dualpipe_v_zero0_tied", "dualpipe_v", 0, true, kAll, 1, true, 2, 2},
                    Case{"one_stage_zero1_tied", "1f1b", 1, true, kAll, 1, false, 1},
                    Case{"one_stage_zero3_tied", "gpipe", 3, true, 1, 2, false, 1}),
    [](const testing::TestParamInfo<Case>& tested) {
      return "case_" + std::string(tested.param.name);
    });

}  // namespace
}  // namespace esteira
