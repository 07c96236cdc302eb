// What the search chooses, judged by the simulator.
#include "coordinator/planner/search.h"

#include <algorithm>
#include <set>
#include <string>

#include "coordinator/planner/drafts.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/schedules/schedules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A model of which each block takes some milliseconds on the workers below.
JobSpec MediumJob(int64_t layers) {
  JobSpec job = ToyJob(layers);
  job.model.hidden_size = 256;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 4;
  job.model.intermediate_size = 1024;
  job.model.vocab_size = 512;
  job.model.max_sequence_length = 128;
  job.sequence_length = 128;
  job.global_batch_size = 32;
  return job;
}

// A large language model by its sizes (Llama 3, 2024).
JobSpec LargeJob(int64_t layers, int64_t hidden, int64_t intermediate) {
  JobSpec job = ToyJob(layers);
  job.model.architecture = Architecture::kLlama;
  job.model.hidden_size = hidden;
  job.model.num_heads = hidden / 128;
  job.model.num_kv_heads = 8;
  job.model.intermediate_size = intermediate;
  job.model.vocab_size = 128256;
  job.model.max_sequence_length = 8192;
  job.sequence_length = 8192;
  job.precision = Precision::kBf16;
  job.layout.recompute = "auto";
  return job;
}

ClusterSpec Gpus(int count, int64_t gibibytes) {
  ClusterSpec cluster = UniformCluster(count, {.kind = "gpu",
                                               .memory_bytes = gibibytes << 30,
                                               .flops_fp32 = 50e12,
                                               .flops_bf16 = 400e12,
                                               .bytes_per_second = 2e12});
  for (int i = 0; i < count; ++i) cluster.workers[static_cast<size_t>(i)].host = i / 8;
  cluster.within_host = {5e-6, 400e9};
  cluster.between_hosts = {20e-6, 50e9};
  return cluster;
}

int64_t Peak(const Prediction& prediction) { return PeakBytes(prediction); }

double SimulatedWith(const JobSpec& job, const ClusterSpec& cluster, Draft draft,
                     const std::vector<int>& boundaries) {
  draft.layout.boundaries = boundaries;
  const auto rehearsal = Rehearse(job, cluster, draft);
  EXPECT_TRUE(rehearsal.ok()) << rehearsal.status();
  return rehearsal->simulation.execution.makespan;
}

TEST(SearchTest, ASlowWorkerGetsFewerLayers) {
  JobSpec job = MediumJob(16);
  job.layout.stages = 3;
  job.layout.replicas = 1;
  job.layout.micro_batch_size = 1;
  job.layout.schedule = "1f1b";
  ClusterSpec cluster = UniformCluster(3);
  cluster.workers[1].flops_fp32 /= 2;
  const auto result = Search(job, cluster);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_FALSE(result->fitting.empty());
  const Draft& draft = result->fitting.front().draft;
  const auto slow = std::find(draft.worker_of_rank.begin(), draft.worker_of_rank.end(), 1);
  const auto stage = static_cast<size_t>(slow - draft.worker_of_rank.begin());
  const std::vector<int>& bounds = draft.layout.boundaries;
  const auto units = [&](size_t s) { return bounds[s + 1] - bounds[s]; };
  for (size_t s = 0; s < 3; ++s) {
    if (s != stage) {
      EXPECT_LT(units(stage), units(s));
    }
  }
  EXPECT_LT(result->fitting.front().prediction.step_seconds,
            0.8 * SimulatedWith(job, cluster, draft, {0, 6, 12, 18}));
}

TEST(SearchTest, SlowWorkersShareAStage) {
  JobSpec job = MediumJob(14);
  job.layout.stages = 2;
  job.layout.replicas = 2;
  job.layout.micro_batch_size = 1;
  ClusterSpec cluster = UniformCluster(4);
  for (size_t slow : {0u, 3u}) cluster.workers[slow].flops_fp32 /= 3;
  const auto plan = MakePlan(job, cluster);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::set<int> stages;
  for (int rank = 0; rank < 4; ++rank) {
    const int worker = plan->worker_of_rank[static_cast<size_t>(rank)];
    if (worker == 0 || worker == 3) stages.insert(plan->layout.StageOfRank(rank));
  }
  EXPECT_EQ(stages.size(), 1u);
}

TEST(SearchTest, LeavesOutTheSlowestWorkersThatItDoesNotNeed) {
  JobSpec job = MediumJob(6);
  job.layout.stages = 2;
  job.layout.replicas = 1;
  ClusterSpec cluster = UniformCluster(3);
  cluster.workers[0].flops_fp32 /= 4;
  const auto plan = MakePlan(job, cluster);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->worker_of_rank, (std::vector<int>{1, 2}));
}

// ZeRO-1 does not fit, and ZeRO-3 with g = 1 gathers every unit twice a micro-batch over slow
// links.
TEST(SearchTest, FindsTheMiddleBetweenZeroLevels) {
  JobSpec job = MediumJob(30);
  job.layout.stages = 2;
  job.layout.replicas = 4;
  job.layout.micro_batch_size = 1;
  job.layout.schedule = "1f1b";
  ClusterSpec cluster = UniformCluster(8);
  cluster.within_host = {1e-4, 4e7};
  const auto with = [&](int zero, int k, int g, int64_t memory) {
    JobSpec fixed = job;
    fixed.layout.zero = zero;
    fixed.layout.reduce_every = k;
    fixed.layout.gather_for = g;
    for (WorkerSpec& worker : cluster.workers) worker.memory_bytes = memory;
    return MakePlan(fixed, cluster);
  };
  const auto one = with(1, kAll, 1, 0);
  const auto three = with(3, 1, 1, 0);
  ASSERT_TRUE(one.ok() && three.ok());
  ASSERT_GT(three->prediction.step_seconds, 3 * one->prediction.step_seconds);
  const int64_t budget = Peak(one->prediction) - 1;
  EXPECT_FALSE(with(1, kAll, 1, budget).ok());
  for (WorkerSpec& worker : cluster.workers) worker.memory_bytes = budget;
  const auto found = MakePlan(job, cluster);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_LE(Peak(found->prediction), budget);
  EXPECT_LT(found->prediction.step_seconds, three->prediction.step_seconds / 2);
  const bool same = found->layout.zero == 3 && found->layout.policies == three->layout.policies;
  EXPECT_FALSE(same);
}

TEST(SearchTest, StagesMayHaveDifferentWindowsWhenOnlySomeAreShortOfMemory) {
  JobSpec job = MediumJob(10);
  job.layout.stages = 2;
  job.layout.replicas = 4;
  job.layout.zero = 3;
  job.layout.micro_batch_size = 1;
  job.layout.schedule = "1f1b";
  ClusterSpec cluster = UniformCluster(8);
  cluster.within_host = {1e-4, 2e8};
  const auto lax = MakePlan(job, cluster);
  ASSERT_TRUE(lax.ok()) << lax.status();
  for (const StagePolicy& policy : lax->layout.policies) EXPECT_EQ(policy.gather_for, kAll);
  // Under 1F1B the first stage holds more activations.
  const int64_t first = lax->prediction.memory[0].total();
  const int64_t last = lax->prediction.memory[1].total();
  ASSERT_GT(first, last);
  for (WorkerSpec& worker : cluster.workers) worker.memory_bytes = (first + last) / 2;
  const auto tight = MakePlan(job, cluster);
  ASSERT_TRUE(tight.ok()) << tight.status();
  const auto windows = [](const Layout& layout, int stage) {
    return std::make_pair(layout.policy(stage).reduce_every, layout.policy(stage).gather_for);
  };
  EXPECT_NE(windows(tight->layout, 0), windows(lax->layout, 0));
  EXPECT_EQ(windows(tight->layout, 1), windows(lax->layout, 1));
}

TEST(SearchTest, AutoIsNeverSlowerThanANamedScheduleUnderTheSameBudget) {
  for (int64_t gibibytes : {80, 24, 14}) {
    JobSpec job = LargeJob(22, 2048, 5632);
    job.sequence_length = 2048;
    job.global_batch_size = 64;
    job.layout.stages = 4;
    job.layout.replicas = 2;
    job.layout.micro_batch_size = 2;
    const ClusterSpec cluster = Gpus(8, gibibytes);
    const auto open = MakePlan(job, cluster);
    ASSERT_TRUE(open.ok()) << open.status();
    EXPECT_LE(Peak(open->prediction), gibibytes << 30);
    for (const Schedule& schedule : TrainingSchedules()) {
      job.layout.schedule = schedule.name;
      const auto named = MakePlan(job, cluster);
      if (!named.ok()) continue;
      // Within what the choice of the simplest among equals gives away.
      EXPECT_LE(open->prediction.step_seconds, 1.0051 * named->prediction.step_seconds)
          << schedule.name << " with " << gibibytes << " GiB";
    }
  }
}

TEST(SearchTest, RecomputesOnlyOnTheStagesThatMust) {
  JobSpec job = MediumJob(10);
  job.layout.stages = 4;
  job.layout.replicas = 1;
  job.layout.schedule = "1f1b";
  job.layout.micro_batch_size = 2;
  const auto without = MakePlan(job, UniformCluster(4));
  ASSERT_TRUE(without.ok()) << without.status();
  const int64_t budget =
      (without->prediction.memory[0].total() + without->prediction.memory[2].total()) / 2;
  job.layout.recompute = "auto";
  const auto plan = MakePlan(job, UniformCluster(4, {.memory_bytes = budget}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(Peak(plan->prediction), budget);
  EXPECT_TRUE(plan->layout.policy(0).recompute);
  EXPECT_FALSE(plan->layout.policy(3).recompute);
}

TEST(SearchTest, ExplainsTheChoiceAndThreeOthers) {
  const auto step = PlanStep(MediumJob(10), UniformCluster(8));
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_EQ(step->explanation.size(), 4u);
  EXPECT_THAT(step->explanation[0], AllOf(HasSubstr(" s a step"), HasSubstr("fullest rank")));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_THAT(step->explanation[i],
                ::testing::AnyOf(HasSubstr("slower"), HasSubstr("as fast"), HasSubstr("lacks")));
  }
}

TEST(SearchTest, SixteenThousandRanksAndALargeModel) {
  JobSpec job = LargeJob(126, 16384, 53248);  // 405B parameters
  job.global_batch_size = 16384;
  const auto step = PlanStep(job, Gpus(16384, 141));
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->plan.layout.num_ranks(), 16384);
  EXPECT_EQ(step->plan.prediction.memory.size(), step->plan.train.size());
  EXPECT_EQ(step->plan.train.size(), static_cast<size_t>(step->plan.layout.stages));
  EXPECT_GT(step->simulation.utilization, 0.4);
  EXPECT_LE(Peak(step->plan.prediction), int64_t{141} << 30);
}

TEST(SearchTest, ThePredictionIsThatOfThePlan) {
  JobSpec job = MediumJob(6);
  job.layout.stages = 2;
  job.layout.replicas = 3;
  job.layout.zero = 2;
  job.layout.schedule = "zb_h1";
  job.layout.micro_batch_size = 1;
  job.global_batch_size = 24;
  const ClusterSpec cluster = UniformCluster(6);
  const auto plan = MakePlan(job, cluster);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const CostModel costs(job.model, plan->layout, job.precision, cluster, plan->worker_of_rank);
  const auto whole = Predict(*plan, [&](const Program& program, const Instruction& instruction) {
    return costs.Seconds(program, instruction);
  });
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_NEAR(whole->step_seconds, plan->prediction.step_seconds, 1e-12);
  EXPECT_NEAR(whole->bubble_ratio, plan->prediction.bubble_ratio, 1e-9);
  EXPECT_EQ(whole->memory, plan->prediction.memory);
}

TEST(SearchTest, MeasuredFactorsScaleTheirOps) {
  const JobSpec job = MediumJob(6);
  ClusterSpec cluster = UniformCluster(1);
  const auto plain = MakePlan(job, cluster);
  ASSERT_TRUE(plain.ok()) << plain.status();
  cluster.factors[static_cast<size_t>(Op::kForward)] = 3;
  const auto slower = MakePlan(job, cluster);
  ASSERT_TRUE(slower.ok()) << slower.status();
  const auto seconds = [](const Plan& plan, Op op) {
    return plan.prediction.op_seconds[static_cast<size_t>(op)];
  };
  EXPECT_NEAR(seconds(*slower, Op::kForward), 3 * seconds(*plain, Op::kForward), 1e-9);
  EXPECT_NEAR(seconds(*slower, Op::kBackward), seconds(*plain, Op::kBackward), 1e-9);
}

TEST(SearchTest, SchedulesFromAFile) {
  JobSpec job = MediumJob(2);
  job.global_batch_size = 4;
  job.layout.schedule = "csv:/a.csv";
  job.layout.schedule_csv = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
  const auto plan = MakePlan(job, UniformCluster(2));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.stages, 2);
  EXPECT_EQ(plan->layout.micro_batch_size, 2);
  EXPECT_EQ(plan->layout.schedule, "csv:/a.csv");
  const auto refusal = [&](const JobSpec& refused) {
    return std::string(MakePlan(refused, UniformCluster(2)).status().message());
  };
  JobSpec wrong = job;
  wrong.layout.stages = 1;
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("2 rows"), HasSubstr("pipeline_stages is 1")));
  wrong = job;
  wrong.layout.micro_batch_size = 3;
  wrong.global_batch_size = 9;
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("2 micro-batches"), HasSubstr("micro_batch_size")));
  wrong = job;
  wrong.layout.schedule_csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1Q1\n";
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("1Q1"), HasSubstr("csv:/a.csv")));
}

}  // namespace
}  // namespace esteira
