#include "coordinator/planner/planner.h"

#include <limits>
#include <string>

#include "common/plan/validate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ClusterSpec Workers(int count, int64_t memory = 0) {
  return UniformCluster(count, {.memory_bytes = memory});
}

std::string Refusal(const JobSpec& job, const ClusterSpec& cluster) {
  const absl::StatusOr<Plan> plan = MakePlan(job, cluster);
  EXPECT_FALSE(plan.ok());
  return std::string(plan.status().message());
}

absl::StatusOr<Layout> LayoutFor(const JobSpec& job, const ClusterSpec& cluster) {
  ASSIGN_OR_RETURN(Plan plan, MakePlan(job, cluster));
  return std::move(plan.layout);
}

int64_t PeakBytes(const Plan& plan) {
  int64_t peak = 0;
  for (const MemoryUse& use : plan.prediction.memory) peak = std::max(peak, use.total());
  return peak;
}

TEST(PlannerTest, AFullLayoutIsTakenAsItIs) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 3;
  job.layout.chunks_per_stage = 1;
  job.layout.replicas = 2;
  job.layout.zero = 2;
  job.layout.schedule = "gpipe";
  job.layout.reduce_every = 2;
  job.layout.gather_for = 2;
  job.layout.micro_batch_size = 2;
  job.layout.recompute = "full";
  const auto plan = MakePlan(job, Workers(8));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Layout& layout = plan->layout;
  EXPECT_EQ(layout.stages, 3);
  EXPECT_EQ(layout.replicas, 2);
  EXPECT_EQ(layout.zero, 2);
  EXPECT_EQ(layout.schedule, "gpipe");
  for (const StagePolicy& policy : layout.policies) {
    EXPECT_EQ(policy.reduce_every, 2);
    EXPECT_EQ(policy.gather_for, 2);
    EXPECT_TRUE(policy.recompute);
  }
  EXPECT_EQ(layout.micro_batch_size, 2);
  EXPECT_TRUE(Validate(*plan).ok());
  EXPECT_GT(plan->prediction.step_seconds, 0);
  EXPECT_EQ(plan->prediction.memory.size(), 3u) << "by stage";
}

TEST(PlannerTest, OpenFieldsUseAllWorkers) {
  for (int workers : {1, 2, 6, 7, 12}) {
    const auto layout = LayoutFor(ToyJob(6), Workers(workers));
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->num_ranks(), workers);
  }
}

TEST(PlannerTest, WhatIsGivenStays) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 2;
  auto layout = LayoutFor(job, Workers(7));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->stages, 2);
  EXPECT_EQ(layout->replicas, 3);
  job.layout.stages.reset();
  job.layout.replicas = 3;
  layout = LayoutFor(job, Workers(7));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->replicas, 3);
  EXPECT_LE(layout->num_ranks(), 7);
}

// Gathers and reductions that run beside computation cost nothing but their first and last.
TEST(PlannerTest, LookaheadHidesCommunication) {
  JobSpec job = ToyJob(16);
  job.global_batch_size = 16;
  job.layout.micro_batch_size = 2;
  job.layout.stages = 1;
  job.layout.replicas = 2;
  job.layout.zero = 3;
  job.layout.reduce_every = 1;
  job.layout.gather_for = 1;
  const ClusterSpec cluster = UniformCluster(2, {.pass_seconds = 1e-3});
  double exposed[2];
  for (const int lookahead : {0, 1}) {
    job.layout.lookahead = lookahead;
    const absl::StatusOr<Plan> plan = MakePlan(job, cluster);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->layout.policies[0].lookahead, lookahead);
    exposed[lookahead] =
        plan->prediction.exposed_communication_ratio * plan->prediction.step_seconds;
  }
  EXPECT_LT(exposed[1], 0.15 * exposed[0]);
}

TEST(PlannerTest, SlowLinksAvoidReplicasOrStages) {
  JobSpec job = ToyJob(6);
  job.global_batch_size = 64;
  job.layout.micro_batch_size = 16;
  ClusterSpec cluster = UniformCluster(4, {.flops_fp32 = 1e5, .flops_bf16 = 1e5});
  cluster.within_host = {0, 1e15};
  const auto free_links = LayoutFor(job, cluster);
  ASSERT_TRUE(free_links.ok()) << free_links.status();
  EXPECT_EQ(free_links->replicas, 4);  // no bubble
  job.global_batch_size = 8;
  job.layout.micro_batch_size = 1;
  cluster.within_host.bytes_per_second = 1e4;
  const auto slow_links = LayoutFor(job, cluster);
  ASSERT_TRUE(slow_links.ok()) << slow_links.status();
  EXPECT_GT(slow_links->stages, 1);  // gradients are larger than activations
}

TEST(PlannerTest, EachZeroLevelNeedsLessAndIsFoundWhenOnlyItFits) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 1;
  job.layout.replicas = 4;
  job.layout.micro_batch_size = 1;
  job.layout.reduce_every = 1;
  job.layout.gather_for = 1;
  int64_t last = std::numeric_limits<int64_t>::max();
  for (int zero = 0; zero < 4; ++zero) {
    job.layout.zero = zero;
    const auto fixed = MakePlan(job, Workers(4));
    ASSERT_TRUE(fixed.ok()) << fixed.status();
    EXPECT_LT(PeakBytes(*fixed), last);
    last = PeakBytes(*fixed);
    JobSpec open = job;
    open.layout.zero.reset();
    const auto found = MakePlan(open, Workers(4, last));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_GE(found->layout.zero, zero);
    EXPECT_LE(PeakBytes(*found), last);
  }
}

TEST(PlannerTest, RecomputeAutoOnlyWhenItMustBe) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 1;
  job.layout.replicas = 1;
  job.layout.zero = 0;
  job.layout.schedule = "gpipe";
  job.layout.micro_batch_size = 1;
  job.layout.recompute = "auto";
  const auto roomy = MakePlan(job, Workers(1));
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_FALSE(roomy->layout.policy(0).recompute);
  const auto tight = MakePlan(job, Workers(1, PeakBytes(*roomy) - 1));
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_TRUE(tight->layout.policy(0).recompute);
}

TEST(PlannerTest, RefusesMoreStagesThanUnits) {
  JobSpec job = ToyJob(4);
  job.layout.stages = 7;
  EXPECT_THAT(Refusal(job, Workers(8)),
              AllOf(HasSubstr("pipeline_stages 7"), HasSubstr("at most 6")));
  job.layout.stages = 6;
  EXPECT_TRUE(MakePlan(job, Workers(8)).ok());
}

TEST(PlannerTest, RefusesWhatIsNotBuiltIn) {
  JobSpec job = ToyJob(4);
  job.layout.schedule = "zb_w";
  EXPECT_THAT(Refusal(job, Workers(2)), AllOf(HasSubstr("zb_w"), HasSubstr("1f1b, gpipe, inter")));
  job = ToyJob(4);
  job.layout.schedule = "zb_v";
  job.layout.chunks_per_stage = 3;
  EXPECT_THAT(Refusal(job, Workers(2)), AllOf(HasSubstr("chunks_per_stage 3"), HasSubstr("has 2")));
  job.layout.chunks_per_stage.reset();
  job.layout.stages = 4;
  EXPECT_THAT(Refusal(job, Workers(4)), AllOf(HasSubstr("zb_v"), HasSubstr("the model has 6")));
  job = ToyJob(4);
  job.layout.zero = 4;
  EXPECT_THAT(Refusal(job, Workers(2)), HasSubstr("zero 4"));
}

TEST(PlannerTest, RefusesMoreRanksThanWorkersAndNamesWhatFits) {
  JobSpec job = ToyJob(4);
  job.layout.stages = 2;
  job.layout.replicas = 4;
  EXPECT_THAT(Refusal(job, Workers(6)),
              AllOf(HasSubstr("need 8 workers"), HasSubstr("there are 6"),
                    HasSubstr("2 stages x 3 replicas"), HasSubstr("3 stages x 2 replicas")));
  job.layout.replicas.reset();
  EXPECT_THAT(Refusal(job, Workers(1)),
              AllOf(HasSubstr("need 2 workers"), HasSubstr("1 stages x 1 replicas")));
  EXPECT_THAT(Refusal(ToyJob(4), Workers(0)), HasSubstr("no worker"));
}

TEST(PlannerTest, RefusesWhatDoesNotFitAndNamesWhatDoes) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 1;
  job.layout.replicas = 4;
  job.layout.zero = 0;
  job.layout.micro_batch_size = 2;
  const auto plan = MakePlan(job, Workers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status refused = MakePlan(job, Workers(4, PeakBytes(*plan) - 100)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("rank 0"), HasSubstr("), 100 bytes more than its worker has"),
                    HasSubstr("with another zero it fits: 1 stages x 4 replicas, 1f1b, ZeRO ")));
  EXPECT_THAT(Refusal(job, Workers(4, 1)), HasSubstr("no layout on these workers fits"));
}

// What exact numerics cost is in the prediction: sums and reductions of twice the bytes, and a pass
// over the gradient of each micro-batch.
TEST(PlannerTest, ExactNumericsArePredicted) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 2;
  job.layout.replicas = 3;
  job.layout.zero = 2;
  job.layout.schedule = "1f1b";
  job.layout.reduce_every = kAll;
  job.layout.micro_batch_size = 1;
  const auto fast = MakePlan(job, Workers(6));
  job.numerics = Numerics::kExact;
  const auto exact = MakePlan(job, Workers(6));
  ASSERT_TRUE(fast.ok()) << fast.status();
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ(exact->layout.numerics, Numerics::kExact);
  EXPECT_NE(PlanDigest(*fast), PlanDigest(*exact));
  ASSERT_EQ(exact->prediction.memory.size(), exact->train.size());
  for (size_t stage = 0; stage < exact->train.size(); ++stage) {
    const MemoryUse& before = fast->prediction.memory[stage];
    const MemoryUse& after = exact->prediction.memory[stage];
    EXPECT_EQ(after.gradients, 2 * before.gradients);
    EXPECT_GT(after.slots, before.slots);
    EXPECT_GT(after.workspace, before.workspace);
    EXPECT_EQ(after, CountMemory(*exact, exact->train[stage]));
  }
  for (Op op : {Op::kBackward, Op::kReduce, Op::kClear, Op::kStep}) {
    const auto seconds = [op](const Plan& plan) {
      return plan.prediction.op_seconds[static_cast<size_t>(op)];
    };
    EXPECT_GT(seconds(*exact), seconds(*fast)) << OpName(op);
  }
}

// Reductions move half the bytes, or three quarters where the sums then go to everyone; nothing
// else changes.
TEST(PlannerTest, Bf16GradientTrafficIsPredicted) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 1;
  job.layout.replicas = 3;
  job.layout.schedule = "1f1b";
  job.layout.reduce_every = kAll;
  job.layout.micro_batch_size = 1;
  ClusterSpec cluster = UniformCluster(3);
  cluster.within_host = cluster.between_hosts = {0, 1e9};
  for (const auto& [zero, share] : {std::pair{0, 0.75}, {1, 0.5}, {2, 0.5}, {3, 0.5}}) {
    job.layout.zero = zero;
    job.gradient_traffic = GradientTraffic::kFull;
    const auto full = MakePlan(job, cluster);
    job.gradient_traffic = GradientTraffic::kBf16;
    const auto bf16 = MakePlan(job, cluster);
    ASSERT_TRUE(full.ok()) << full.status();
    ASSERT_TRUE(bf16.ok()) << bf16.status();
    EXPECT_EQ(bf16->layout.gradient_traffic, GradientTraffic::kBf16);
    EXPECT_NE(PlanDigest(*full), PlanDigest(*bf16));
    EXPECT_EQ(bf16->prediction.memory, full->prediction.memory);
    for (int op = 0; op < kNumOps; ++op) {
      const auto seconds = [op](const Plan& plan) {
        return plan.prediction.op_seconds[static_cast<size_t>(op)];
      };
      const double expected = static_cast<Op>(op) == Op::kReduce ? share : 1;
      EXPECT_NEAR(seconds(*bf16), expected * seconds(*full), 1e-9 * seconds(*full))
          << OpName(static_cast<Op>(op)) << ", ZeRO " << zero;
    }
  }
}

TEST(PlannerTest, RefusesPlansThatAreTooLargeToHold) {
  JobSpec job = ToyJob(6);
  job.global_batch_size = int64_t{1} << 24;
  job.layout.micro_batch_size = 1;
  EXPECT_THAT(Refusal(job, Workers(1)), HasSubstr("larger micro_batch_size"));
}

TEST(PlannerTest, TheSameInputGivesTheSamePlan) {
  JobSpec job = ToyJob(5);
  job.model.tie_embeddings = true;
  const auto first = MakePlan(job, Workers(6));
  const auto second = MakePlan(job, Workers(6));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(PlanDigest(*first), PlanDigest(*second));
  EXPECT_TRUE(*first == *second);
  job.global_batch_size += 1;
  const auto other = MakePlan(job, Workers(6));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(PlanDigest(*first), PlanDigest(*other));
}

}  // namespace
}  // namespace esteira
