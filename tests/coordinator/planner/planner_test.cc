#include "coordinator/planner/planner.h"

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
  ClusterSpec cluster;
  cluster.num_workers = count;
  cluster.memory_bytes_per_worker = memory;
  return cluster;
}

std::string Refusal(const JobSpec& job, const ClusterSpec& cluster) {
  const absl::StatusOr<Plan> plan = MakePlan(job, cluster);
  EXPECT_FALSE(plan.ok());
  return std::string(plan.status().message());
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
  EXPECT_EQ(layout.reduce_every, 2);
  EXPECT_EQ(layout.gather_for, 2);
  EXPECT_EQ(layout.micro_batch_size, 2);
  EXPECT_EQ(layout.recompute, Recompute::kFull);
  EXPECT_TRUE(Validate(*plan).ok());
  EXPECT_GT(plan->prediction.step_seconds, 0);
  EXPECT_EQ(plan->prediction.memory.size(), 6u);
}

TEST(PlannerTest, OpenFieldsUseAllWorkers) {
  for (int workers : {1, 2, 6, 7, 12}) {
    const auto layout = ChooseLayout(ToyJob(6), Workers(workers));
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->num_ranks(), workers);
    EXPECT_EQ(layout->zero, 0);
    EXPECT_EQ(layout->schedule, "1f1b");
  }
}

TEST(PlannerTest, WhatIsGivenStays) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 2;
  auto layout = ChooseLayout(job, Workers(7));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->stages, 2);
  EXPECT_EQ(layout->replicas, 3);
  job.layout.stages.reset();
  job.layout.replicas = 3;
  layout = ChooseLayout(job, Workers(7));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->replicas, 3);
  EXPECT_LE(layout->num_ranks(), 7);
}

TEST(PlannerTest, SlowLinksAvoidReplicasOrStages) {
  JobSpec job = ToyJob(6);
  job.global_batch_size = 64;
  job.layout.micro_batch_size = 16;
  ClusterSpec cluster = Workers(4);
  cluster.flops_per_worker = 1e5;
  cluster.link_latency_seconds = 0;
  cluster.link_bytes_per_second = 1e15;
  const auto free_links = ChooseLayout(job, cluster);
  ASSERT_TRUE(free_links.ok()) << free_links.status();
  EXPECT_EQ(free_links->replicas, 4);  // no bubble
  job.global_batch_size = 8;
  job.layout.micro_batch_size = 1;
  cluster.link_bytes_per_second = 1e5;
  const auto slow_links = ChooseLayout(job, cluster);
  ASSERT_TRUE(slow_links.ok()) << slow_links.status();
  EXPECT_GT(slow_links->stages, 1);  // gradients are larger than activations
}

TEST(PlannerTest, ZeroRisesUntilItFits) {
  JobSpec job = ToyJob(6);
  job.layout.stages = 1;
  job.layout.replicas = 4;
  job.layout.micro_batch_size = 1;
  int last = -1;
  const auto whole = MakePlan(job, Workers(4));
  ASSERT_TRUE(whole.ok()) << whole.status();
  int64_t budget = PeakBytes(*whole);
  for (int zero = 0; zero < 4; ++zero) {
    const auto plan = MakePlan(job, Workers(4, budget));
    if (!plan.ok()) break;
    EXPECT_LE(PeakBytes(*plan), budget);
    EXPECT_GT(plan->layout.zero, last);
    last = plan->layout.zero;
    budget = PeakBytes(*plan) - 1;
  }
  EXPECT_GE(last, 1);
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
  EXPECT_EQ(roomy->layout.recompute, Recompute::kNone);
  const auto tight = MakePlan(job, Workers(1, PeakBytes(*roomy) - 1));
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->layout.recompute, Recompute::kFull);
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
  job.layout.schedule = "zb_v";
  EXPECT_THAT(Refusal(job, Workers(2)), AllOf(HasSubstr("zb_v"), HasSubstr("gpipe, 1f1b")));
  job = ToyJob(4);
  job.layout.chunks_per_stage = 2;
  EXPECT_THAT(Refusal(job, Workers(2)), AllOf(HasSubstr("chunks_per_stage 2"), HasSubstr("use 1")));
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
              AllOf(HasSubstr("rank 0"), HasSubstr(", 100 more than"),
                    HasSubstr("this fits: pipeline_stages 1, replicas 4, zero 1")));
  EXPECT_THAT(Refusal(job, Workers(4, 1)), HasSubstr("no layout on these workers fits"));
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
