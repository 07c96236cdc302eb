#include "coordinator/planner/simulator.h"

#include <utility>

#include "coordinator/planner/lowering/lowering.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

Plan Lowered(int64_t layers, const Layout& layout) {
  absl::StatusOr<Plan> plan = Generate(ToyModel(layers, false), layout, Precision::kFp32);
  EXPECT_TRUE(plan.ok()) << plan.status();
  plan = Lower(*std::move(plan));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// F and B of a stage take a second each, and nothing else takes time.
double OneSecondAStage(const Program& program, const Instruction& instruction) {
  const bool counts = instruction.op == Op::kForward || instruction.op == Op::kBackward;
  return counts ? 1.0 / static_cast<double>(program.units.size()) : 0;
}

TEST(SimulatorTest, BubbleIsThatOfTheTextbook) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int stages : {1, 2, 3, 4, 8}) {
      for (int micro_batches : {1, 2, 4, 7, 16}) {
        const Layout layout = ToyLayout(ToyModel(7, false), stages, 1, micro_batches, schedule);
        const auto simulation = Simulate(Lowered(7, layout), OneSecondAStage);
        ASSERT_TRUE(simulation.ok()) << simulation.status();
        const double p = stages, m = micro_batches;
        EXPECT_NEAR(simulation->bubble_ratio, (p - 1) / (m + p - 1), 1e-9)
            << schedule << " " << stages << "x" << micro_batches;
        EXPECT_NEAR(simulation->execution.makespan, 2 * (m + p - 1), 1e-9);
      }
    }
  }
}

TEST(SimulatorTest, SlowLinksLengthenTheStep) {
  const Layout layout = ToyLayout(ToyModel(4, false), 3, 2, 4, "1f1b", 3);
  const Plan plan = Lowered(4, layout);
  ClusterSpec cluster = UniformCluster(6);
  double last = 0;
  for (double latency : {1e-6, 1e-4, 1e-2}) {
    cluster.within_host.latency_seconds = latency;
    const CostModel costs(plan.model, plan.layout, plan.precision, cluster);
    const auto prediction =
        Predict(plan, [&](const Program& program, const Instruction& instruction) {
          return costs.Seconds(program, instruction);
        });
    ASSERT_TRUE(prediction.ok()) << prediction.status();
    EXPECT_GT(prediction->step_seconds, last);
    last = prediction->step_seconds;
    EXPECT_EQ(prediction->memory.size(), 3u) << "by stage";
  }
}

TEST(SimulatorTest, TransfersHideBehindComputation) {
  // Compute of a unit takes a second, each transfer as long: with several micro-batches in flight
  // most of it is hidden.
  const Layout layout = ToyLayout(ToyModel(10, false), 2, 1, 8, "gpipe");
  const Plan plan = Lowered(10, layout);
  const auto duration = [](double transfer) {
    return [transfer](const Program&, const Instruction& instruction) {
      return IsCompute(instruction.op) ? 1.0 : IsPointToPoint(instruction.op) ? transfer : 0.0;
    };
  };
  const auto free = Simulate(plan, duration(0));
  const auto slow = Simulate(plan, duration(1));
  ASSERT_TRUE(free.ok() && slow.ok());
  // Only the first activation and the first gradient are waited for.
  EXPECT_NEAR(slow->execution.makespan, free->execution.makespan + 2, 1e-9);
}

TEST(SimulatorTest, GathersAndReductionsHideBehindComputation) {
  const Layout layout = ToyLayout(ToyModel(10, false), 1, 2, 4, "1f1b", 3, {.reduce_every = 1});
  const Plan plan = Lowered(10, layout);
  const auto duration = [](double collective) {
    return [collective](const Program&, const Instruction& instruction) {
      const bool moves = instruction.op == Op::kGather || instruction.op == Op::kReduce;
      return IsCompute(instruction.op) ? 1.0 : moves ? collective : 0.0;
    };
  };
  const auto free = Simulate(plan, duration(0));
  const auto slow = Simulate(plan, duration(0.4));
  ASSERT_TRUE(free.ok() && slow.ok());
  // Only the first gather and the last reduction are waited for.
  EXPECT_NEAR(slow->execution.makespan, free->execution.makespan + 0.8, 1e-9);
}

TEST(SimulatorTest, AGroupHasOneLatency) {
  const ModelSpec model = ToyModel(1, true);
  for (int zero : {0, 1}) {
    const Layout layout = ToyLayout(model, 1, 2, 2, "1f1b", zero);
    ClusterSpec cluster = UniformCluster(2);
    cluster.within_host = cluster.between_hosts = {.latency_seconds = 1, .bytes_per_second = 1e6};
    const CostModel costs(model, layout, Precision::kFp32, cluster);
    Program program;
    Instruction reduce = {.op = Op::kReduce, .unit = 2};
    const double alone = costs.Seconds(program, reduce);
    reduce.joined = true;
    EXPECT_NEAR(costs.Seconds(program, reduce), alone - (zero == 0 ? 2 : 1), 1e-9);
    EXPECT_GT(costs.Seconds(program, reduce), 0);
    Instruction gather = {.op = Op::kGather, .unit = 2};
    const double gathered = costs.Seconds(program, gather);
    gather.joined = true;
    EXPECT_NEAR(costs.Seconds(program, gather), gathered - 1, 1e-9);
  }
}

// The first replica has no fewer samples than the others, and its times are those of its stage.
TEST(SimulatorTest, AShortMicroBatchTakesLessTime) {
  const ModelSpec model = ToyModel(1, false);
  Layout layout = ToyLayout(model, 1, 1, 2, "1f1b");
  layout.global_batch_size = 3;  // micro-batches of 2 and 1
  const Plan plan = Lowered(1, layout);
  const CostModel costs(model, layout, Precision::kFp32, UniformCluster(1));
  Instruction forward = {.op = Op::kForward, .unit = 1, .micro_batch = 0};
  const double full = costs.Seconds(plan.train[0], forward);
  forward.micro_batch = 1;
  EXPECT_LT(costs.Seconds(plan.train[0], forward), full);
  layout.replicas = 2;  // of one micro-batch each, the second one short
  const CostModel two(model, layout, Precision::kFp32, UniformCluster(2));
  forward.micro_batch = 0;
  EXPECT_EQ(two.Seconds(plan.train[0], forward), full);
}

}  // namespace
}  // namespace esteira
