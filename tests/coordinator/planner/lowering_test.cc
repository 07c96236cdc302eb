#include "coordinator/planner/lowering/lowering.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/base/hash.h"
#include "common/plan/validate.h"
#include "coordinator/planner/simulator.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

absl::StatusOr<Plan> MakeLowered(const ModelSpec& model, const Layout& layout,
                                 Phase phase = kLowered) {
  ASSIGN_OR_RETURN(Plan generated, Generate(model, layout, Precision::kFp32));
  return Lower(std::move(generated), phase);
}

// The instructions of one rank without compute on the way, as text.
std::string Text(const Program& program, const std::set<Op>& ops) {
  std::string text;
  for (const Instruction& instruction : program.instructions) {
    if (ops.count(instruction.op) == 0) continue;
    text += (text.empty() ? "" : " ") + ToText(instruction);
  }
  return text;
}

int CountOps(const Program& program, Op op) {
  return static_cast<int>(std::count_if(program.instructions.begin(), program.instructions.end(),
                                        [op](const Instruction& i) { return i.op == op; }));
}

const std::set<Op> kEndOps = {Op::kTieGradient, Op::kNorm, Op::kStep, Op::kTieParameter};

// One point of the grid. The micro-batches of the last replica may be short or empty.
struct Point {
  int stages, micro_batches, zero, reduce_every, gather_for, replicas, schedule, tied, recompute;
  std::array<int, 9> values() const {
    return {stages,   micro_batches, zero, reduce_every, gather_for,
            replicas, schedule,      tied, recompute};
  }
};

Layout LayoutOf(const Point& point, const ModelSpec& model, uint64_t random) {
  const Schedule& schedule = TrainingSchedules()[static_cast<size_t>(point.schedule)];
  const int chunks = std::string(schedule.name) == "interleaved" ? 1 + static_cast<int>(random % 3)
                                                                 : schedule.min_chunks_per_stage;
  Layout layout =
      ToyLayout(model, point.stages, point.replicas, point.micro_batches, schedule.name, point.zero,
                {point.reduce_every, point.gather_for, point.recompute == 1,
                 1 + static_cast<int>(random / 3 % 3)},
                chunks);
  // The stages need not have the same windows.
  if (random % 4 == 0) layout.policies.back() = {1, kAll, point.recompute == 0, 1};
  // As few as one micro-batch more than fits into one less each; the last one is short.
  const int missing = static_cast<int>(random % static_cast<uint64_t>(point.replicas));
  layout.global_batch_size -= int64_t{2} * missing + 1;
  return layout;
}

// Every point of (stages, micro-batches, ZeRO, k, g); the other dimensions are drawn, each pair of
// values at least once. ESTEIRA_SHORT_GRID=1 draws ZeRO, k and g as well.
TEST(LoweringTest, GridIsValidAndRuns) {
  const bool short_grid = std::getenv("ESTEIRA_SHORT_GRID") != nullptr;
  std::set<std::array<int, 4>> pairs;  // which, which, value, value
  uint64_t random = 7;
  const auto draw = [&random](uint64_t below) {
    random = Mix64(random);
    return static_cast<int>(random % below);
  };
  const int schedules = static_cast<int>(TrainingSchedules().size());
  for (int i = 0; i < 8 * 16 * 4 * (short_grid ? 2 : 3 * 3); ++i) {
    const int zero = short_grid ? draw(4) : i / 128 % 4;
    const int k = short_grid ? draw(3) : i / 512 % 3;
    const int g = short_grid ? draw(3) : i / 1536;
    const Point point{1 + i % 8,   1 + i / 8 % 16,  zero,    k,      g,
                      1 + draw(3), draw(schedules), draw(2), draw(2)};
    // Enough units for three chunks a stage, and some more on some of them.
    const ModelSpec model = ToyModel(std::max(1, 3 * point.stages - 2 + draw(3)), point.tied == 1,
                                     draw(2) == 0 ? Architecture::kGpt2 : Architecture::kLlama);
    const Layout layout = LayoutOf(point, model, random);
    ASSERT_EQ(layout.num_micro_batches(), point.micro_batches);
    const absl::StatusOr<Plan> plan = MakeLowered(model, layout);
    ASSERT_TRUE(plan.ok()) << plan.status() << " at " << ::testing::PrintToString(point.values());
    const CostModel costs(model, layout, plan->precision, UniformCluster(layout.num_ranks()));
    const absl::StatusOr<Simulation> simulation =
        Simulate(*plan, [&](const Program& program, const Instruction& instruction) {
          return costs.Seconds(program, instruction);
        });
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_GT(simulation->execution.makespan, 0);
    EXPECT_GE(simulation->bubble_ratio, 0);
    EXPECT_LT(simulation->bubble_ratio, 1);
    const auto values = point.values();
    for (int a = 0; a < 9; ++a) {
      for (int b = 0; b < a; ++b)
        pairs.insert({a, b, values[static_cast<size_t>(a)], values[static_cast<size_t>(b)]});
    }
  }
  const std::array<size_t, 9> sizes = {8, 16, 4, 3, 3, 3, static_cast<size_t>(schedules), 2, 2};
  size_t expected = 0;
  for (size_t a = 0; a < 9; ++a) {
    for (size_t b = 0; b < a; ++b) expected += sizes[a] * sizes[b];
  }
  EXPECT_EQ(pairs.size(), expected) << "a pair of values is not covered";
}

TEST(LoweringTest, LayersAndMicroBatchesThatDoNotDivide) {
  for (const auto& [layers, stages, micro_batches] :
       {std::tuple{30, 4, 8}, {5, 4, 3}, {2, 4, 1}, {1, 3, 1}, {1, 1, 1}}) {
    for (const char* schedule : {"gpipe", "1f1b"}) {
      const ModelSpec model = ToyModel(layers, true);
      const auto plan = MakeLowered(model, ToyLayout(model, stages, 3, micro_batches, schedule, 3));
      EXPECT_TRUE(plan.ok()) << plan.status();
    }
  }
}

TEST(LoweringTest, EveryPhaseIsValid) {
  const ModelSpec model = ToyModel(3, true);
  const Layout layout = ToyLayout(model, 3, 2, 4, "1f1b", 3);
  for (Phase phase : {Phase::kGenerated, Phase::kExpanded, Phase::kPeers, Phase::kPointToPoint,
                      Phase::kZero, Phase::kOverlapped, Phase::kJoined, Phase::kSlots}) {
    const auto plan = MakeLowered(model, layout, phase);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(CountOps(plan->train[0], Op::kStep) > 0, phase >= Phase::kZero);
    EXPECT_EQ(plan->train[0].num_slots(SlotKind::kActivation) > 0, phase == Phase::kSlots);
  }
}

TEST(LoweringTest, EmptyMicroBatchesStandAtTheEndOfAReplica) {
  const ModelSpec model = ToyModel(1, false);
  Layout layout = ToyLayout(model, 1, 3, 2, "1f1b");
  layout.global_batch_size = 7;  // micro-batches of 2, 2, 2, 1, and two empty ones
  const auto batches = [&](int replica) {
    return std::vector<MicroBatch>{layout.MicroBatchOf(replica, 0),
                                   layout.MicroBatchOf(replica, 1)};
  };
  EXPECT_EQ(batches(0), (std::vector<MicroBatch>{{0, 2}, {2, 2}}));
  EXPECT_EQ(batches(1), (std::vector<MicroBatch>{{4, 2}, {6, 1}}));
  EXPECT_EQ(batches(2), (std::vector<MicroBatch>{{7, 0}, {7, 0}}));
}

// A stage may compute micro-batches in another order than they arrive in: the queues keep the
// sender's order.
TEST(LoweringTest, ReceivesKeepTheOrderOfTheSends) {
  const ModelSpec model = ToyModel(2, false);
  absl::StatusOr<Plan> plan = Generate(model, ToyLayout(model, 2, 1, 3, "gpipe"), Precision::kFp32);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<Instruction>& instructions = plan->train[1].instructions;
  std::swap(instructions[0], instructions[2]);  // F2 F1 F0
  plan = Lower(*std::move(plan));
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::string received;
  for (const Instruction& instruction : plan->train[1].instructions) {
    if (instruction.op == Op::kRecvAct) received += std::to_string(instruction.micro_batch);
    if (instruction.op == Op::kForward && instruction.unit == 3) received += "F";
  }
  EXPECT_EQ(received, "012FFF");
}

TEST(LoweringTest, OneRankReducesEachUnitOnceIntoTheSums) {
  const ModelSpec model = ToyModel(1, false);
  const auto plan = MakeLowered(model, ToyLayout(model, 1, 1, 2, "1f1b"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Text(plan->train[0], {Op::kClear, Op::kReduce}),
            "2CLEAR 1CLEAR 0CLEAR 2REDUCE 1REDUCE 0REDUCE");
  EXPECT_EQ(Text(plan->train[0], kEndOps), "NORM 0STEP 1STEP 2STEP");
  EXPECT_EQ(CountOps(plan->train[0], Op::kGather), 0);
  EXPECT_EQ(plan->train[0].num_slots(SlotKind::kWindow), 0);
}

TEST(LoweringTest, TiedTableOnOneRankIsAddedLocally) {
  const ModelSpec model = ToyModel(1, true);
  const auto plan = MakeLowered(model, ToyLayout(model, 1, 2, 2, "1f1b", 3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Text(plan->train[0], kEndOps), "4TIE_GRAD NORM 0STEP 1STEP 2STEP 3STEP");
  for (const Instruction& instruction : plan->train[0].instructions) {
    EXPECT_FALSE(instruction.unit == 4 &&
                 (instruction.op == Op::kGather || instruction.op == Op::kRelease));
  }
}

TEST(LoweringTest, TiedTableOnTwoStagesIsExchanged) {
  const ModelSpec model = ToyModel(1, true);
  const auto plan = MakeLowered(model, ToyLayout(model, 2, 2, 2, "1f1b", 3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Text(plan->train[0], kEndOps), "3TIE_GRAD>1 NORM 0STEP 1STEP 3STEP 3TIE_PARAM>1");
  EXPECT_EQ(Text(plan->train[1], kEndOps), "4TIE_GRAD>0 NORM 2STEP 4TIE_PARAM>0");
}

TEST(LoweringTest, UnitsWithoutParametersOnlyCompute) {
  const ModelSpec model =
      ToyModel(1, true, Architecture::kLlama);  // the embedding has nothing of its own
  const auto plan = MakeLowered(model, ToyLayout(model, 1, 2, 2, "1f1b", 3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const Instruction& instruction : plan->train[0].instructions) {
    if (instruction.unit == 0) {
      EXPECT_TRUE(IsCompute(instruction.op)) << ToText(instruction);
    }
  }
}

TEST(LoweringTest, ParametersAreGatheredInPlaceAfterTheStep) {
  const ModelSpec model = ToyModel(1, false);
  for (int zero : {1, 2}) {
    const auto plan = MakeLowered(model, ToyLayout(model, 1, 2, 2, "1f1b", zero));
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::string text = Text(plan->train[0], {Op::kStep, Op::kGather});
    EXPECT_EQ(text, "0STEP 1STEP 2STEP 0GATHER 1GATHER 2GATHER");
    EXPECT_EQ(CountOps(plan->evaluate[0], Op::kGather), 0);
  }
}

// Blocks of 280 KB between an embedding and a head of 1.28 MB.
ModelSpec ModelOfSmallBlocks() {
  ModelSpec model = ToyModel(7, false);
  model.vocab_size = 40000;
  model.intermediate_size = 4096;
  return model;
}

TEST(LoweringTest, SmallUnitsAreJoinedUpToABucket) {
  const ModelSpec model = ModelOfSmallBlocks();
  for (int zero : {1, 2}) {
    const Layout layout = ToyLayout(model, 1, 2, 2, "1f1b", zero);
    const auto plan = MakeLowered(model, layout);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(Text(plan->train[0], {Op::kGather}),
              "0GATHER 1GATHER + 2GATHER + 3GATHER 4GATHER + 5GATHER + 6GATHER 7GATHER 8GATHER");
  }
  for (int zero : {0, 1}) {
    const Layout layout = ToyLayout(model, 1, 2, 2, "1f1b", zero);
    const auto plan = MakeLowered(model, layout);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(Text(plan->train[0], {Op::kReduce}),
              "8REDUCE 7REDUCE + 6REDUCE + 5REDUCE 4REDUCE + 3REDUCE + 2REDUCE 1REDUCE 0REDUCE");
    // What is joined has moved to where its group runs: behind the last pass that it waits for.
    const std::vector<Instruction>& all = plan->train[0].instructions;
    const auto first = std::find_if(all.begin(), all.end(), [](const Instruction& i) {
      return i.op == Op::kReduce && i.unit == 7;
    });
    ASSERT_NE(first, all.end());
    EXPECT_EQ((first - 1)->op, Op::kBackward);
    EXPECT_EQ((first - 1)->unit, 5);
    EXPECT_EQ((first + 1)->unit, 6);
    EXPECT_EQ((first + 2)->unit, 5);
  }
}

// Of half the bytes there is room for more in a bucket, and no more in the scratch of the rank's
// largest unit.
TEST(LoweringTest, JoinedUnitsAreNoLargerThanTheLargest) {
  const ModelSpec model = ModelOfSmallBlocks();
  const Layout layout = ToyLayout(model, 1, 2, 2, "1f1b", 2);
  absl::StatusOr<Plan> plan = Generate(model, layout, Precision::kBf16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan = Lower(*std::move(plan));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Text(plan->train[0], {Op::kGather}),
            "0GATHER 1GATHER + 2GATHER + 3GATHER + 4GATHER 5GATHER + 6GATHER + 7GATHER 8GATHER");
}

// What has a slot would hold it for longer; and where nothing is sent no latency is saved.
TEST(LoweringTest, NothingIsJoinedThatHasASlotOrNoReplicas) {
  const ModelSpec model = ModelOfSmallBlocks();
  const auto joined = [&](int replicas, int zero, int reduce_every, Op op) {
    const Layout layout =
        ToyLayout(model, 2, replicas, 4, "1f1b", zero, {.reduce_every = reduce_every});
    const auto plan = MakeLowered(model, layout);
    EXPECT_TRUE(plan.ok()) << plan.status();
    int count = 0;
    for (const Program& program : plan->train) {
      for (const Instruction& i : program.instructions) count += i.joined && i.op == op ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(joined(2, 1, kAll, Op::kReduce), 0);
  EXPECT_GT(joined(2, 2, kAll, Op::kGather), 0);
  EXPECT_EQ(joined(2, 1, 2, Op::kReduce), 0);
  EXPECT_EQ(joined(2, 2, kAll, Op::kReduce), 0);
  EXPECT_EQ(joined(2, 3, kAll, Op::kReduce), 0);
  EXPECT_EQ(joined(2, 3, kAll, Op::kGather), 0);
  EXPECT_EQ(joined(1, 1, kAll, Op::kReduce), 0);
  EXPECT_EQ(joined(1, 1, kAll, Op::kGather), 0);
}

TEST(LoweringTest, WindowsOfGradients) {
  const ModelSpec model = ToyModel(1, false);
  for (int zero : {0, 1, 2, 3}) {
    for (const auto& [every, windows] :
         {std::pair{1, 5}, {2, 3}, {4, 2}, {5, 1}, {9, 1}, {kAll, 1}}) {
      const Layout layout = ToyLayout(model, 1, 2, 5, "gpipe", zero, {.reduce_every = every});
      const auto plan = MakeLowered(model, layout);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(CountOps(plan->train[0], Op::kReduce), 3 * windows);
      EXPECT_EQ(CountOps(plan->train[0], Op::kClear), 3 * windows);
      const bool persistent = zero < 2 && windows == 1;
      EXPECT_EQ(plan->train[0].num_slots(SlotKind::kWindow) == 0, persistent);
    }
  }
}

TEST(LoweringTest, WindowsOfParameters) {
  const ModelSpec model = ToyModel(2, false);
  // GPipe on one rank: the head's last forward pass touches its first backward pass, and so one
  // window joins them.
  for (const auto& [gather_for, head, block] :
       {std::tuple{1, 7, 8}, {2, 3, 4}, {3, 3, 4}, {4, 1, 2}, {kAll, 1, 1}}) {
    const Layout layout = ToyLayout(model, 1, 2, 4, "gpipe", 3, {.gather_for = gather_for});
    const auto plan = MakeLowered(model, layout);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::array<int, 4> gathers{};
    for (const Instruction& i : plan->train[0].instructions) {
      if (i.op == Op::kGather) ++gathers[static_cast<size_t>(i.unit)];
    }
    EXPECT_EQ(gathers[3], head) << gather_for;
    EXPECT_EQ(gathers[1], block) << gather_for;
    EXPECT_EQ(CountOps(plan->train[0], Op::kRelease), CountOps(plan->train[0], Op::kGather));
  }
}

TEST(LoweringTest, GathersRunAheadIntoASecondBuffer) {
  const ModelSpec model = ToyModel(6, false);
  const Layout layout = ToyLayout(model, 2, 2, 4, "1f1b", 3, {.reduce_every = 1});
  const auto plan = MakeLowered(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const Program& program : plan->train) {
    // Of blocks; the embedding and the head have one of their own.
    EXPECT_EQ(program.slot_classes(SlotKind::kParameters).back().count, 2);
    EXPECT_EQ(program.slot_classes(SlotKind::kWindow).back().count, 2);
  }
}

TEST(LoweringTest, RecomputationRebuildsBlocksOnly) {
  const ModelSpec model = ToyModel(4, false);
  const Layout layout = ToyLayout(model, 2, 1, 4, "gpipe", 0, {.recompute = true});
  const auto plan = MakeLowered(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const Program& program : plan->train) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      const bool block = instruction.unit > 0 && instruction.unit < 5;
      if (instruction.op == Op::kRecompute) {
        EXPECT_TRUE(block);
      }
      if (instruction.op == Op::kForward && block) {
        EXPECT_EQ(instruction.saved, -1);
      }
      if (instruction.op == Op::kBackward && block) {
        EXPECT_GE(instruction.saved, 0);
      }
    }
  }
  EXPECT_EQ(plan->train[0].num_slots(SlotKind::kSaved), 1);
  EXPECT_EQ(CountOps(plan->evaluate[0], Op::kRecompute), 0);
  EXPECT_EQ(plan->evaluate[0].num_slots(SlotKind::kSaved), 1);
}

TEST(LoweringTest, PeakOfActivations) {
  const ModelSpec model = ToyModel(14, false);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int stages : {1, 2, 4, 7}) {
      for (int micro_batches : {1, 3, 4, 11}) {
        const auto plan = MakeLowered(model, ToyLayout(model, stages, 1, micro_batches, schedule));
        ASSERT_TRUE(plan.ok()) << plan.status();
        for (const Program& program : plan->train) {
          const int held = static_cast<int>(program.units.size()) - (program.stage == 0 ? 1 : 0);
          const int in_flight = std::string(schedule) == "gpipe"
                                    ? micro_batches
                                    : std::min(micro_batches, stages - program.stage);
          EXPECT_EQ(program.num_slots(SlotKind::kSaved), in_flight * held);
          // Besides them what is on its way in or out.
          EXPECT_GE(program.num_slots(SlotKind::kActivation), in_flight * held);
          EXPECT_LE(program.num_slots(SlotKind::kActivation), in_flight * held + 2);
          EXPECT_LE(program.num_slots(SlotKind::kGradient), 3);
        }
      }
    }
  }
}

// What a rank does does not depend on how many replicas there are, but for joined collectives and
// slots, which follow the sizes of what is padded to the replicas.
TEST(LoweringTest, ReplicasMakeAPlanNoLonger) {
  const ModelSpec model = ToyModel(4, true);
  const auto few = MakeLowered(model, ToyLayout(model, 3, 2, 4, "1f1b", 2), Phase::kOverlapped);
  const auto many = MakeLowered(model, ToyLayout(model, 3, 5000, 4, "1f1b", 2), Phase::kOverlapped);
  ASSERT_TRUE(few.ok() && many.ok());
  ASSERT_EQ(many->train.size(), 3u);
  for (size_t stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(many->train[stage].instructions, few->train[stage].instructions);
    EXPECT_EQ(many->evaluate[stage].instructions, few->evaluate[stage].instructions);
  }
}

// The logits of the head do not make the slots of the blocks as large; what is of about one size
// shares slots.
TEST(LoweringTest, SlotsComeInClassesWhereThatTakesLess) {
  ModelSpec model = ToyModel(4, false);
  model.vocab_size = 5000;
  const Layout layout = ToyLayout(model, 2, 2, 4, "1f1b", 3, {.reduce_every = 1});
  const auto plan = MakeLowered(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<UnitSpec> units = MakeUnits(model);
  const auto classes = [&](SlotKind kind, size_t large, int32_t larges, int32_t smalls) {
    const auto bytes = [&](size_t unit) {
      return SlotBytes(model, layout, plan->precision, units[unit], kind);
    };
    EXPECT_GT(bytes(large), 2 * bytes(2));
    return std::vector<SlotClass>{{bytes(large), larges}, {bytes(2), smalls}};
  };
  for (size_t stage : {0, 1}) {
    const Program& program = plan->train[stage];
    const size_t large = stage == 0 ? 0 : 5;
    // One ahead; the embedding and the head are alone of their size.
    for (SlotKind kind : {SlotKind::kParameters, SlotKind::kWindow}) {
      EXPECT_EQ(program.slot_classes(kind), classes(kind, large, 1, 2)) << SlotKindName(kind);
    }
    EXPECT_EQ(program.slot_classes(SlotKind::kActivation).size(), 1u);
    EXPECT_EQ(plan->evaluate[stage].slots, program.slots);
  }
  EXPECT_EQ(plan->train[1].slot_classes(SlotKind::kSaved), classes(SlotKind::kSaved, 5, 1, 2));
}

// Recomputed blocks can lie where the logits lay: one slot takes less than two.
TEST(LoweringTest, OneClassOfSlotsWhereThatTakesLess) {
  ModelSpec model = ToyModel(4, false);
  model.vocab_size = 5000;
  const Layout layout = ToyLayout(model, 1, 1, 4, "1f1b", 0, {.recompute = true});
  const auto plan = MakeLowered(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t head =
      SlotBytes(model, layout, plan->precision, MakeUnits(model)[5], SlotKind::kSaved);
  EXPECT_EQ(plan->train[0].slot_classes(SlotKind::kSaved), (std::vector<SlotClass>{{head, 1}}));
}

TEST(LoweringTest, RefusesBrokenLayouts) {
  const ModelSpec model = ToyModel(2, false);
  const Layout good = ToyLayout(model, 2, 1, 2, "1f1b");
  Layout layout = good;
  layout.schedule = "zb_h9";
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
  layout = good;
  layout.boundaries = {0, 3, 3};
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
  layout.boundaries = {0, 2, 5};
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
  layout = good;
  layout.micro_batch_size = 0;
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
  layout = good;
  layout.policies.pop_back();
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
  layout = good;
  layout.chunks_per_stage = 2;
  EXPECT_FALSE(Generate(model, layout, Precision::kFp32).ok());
}

}  // namespace
}  // namespace esteira
