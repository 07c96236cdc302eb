#include "worker/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <utility>

#include "tests/worker/engine/local_cluster.h"
#include "tests/worker/engine/naive_training.h"
#include "worker/communication/inproc/inproc_transport.h"
#include "worker/optimizer/learning_rate.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<LocalCluster> MakeCluster(const JobSpec& job) {
  auto cluster = LocalCluster::Make(job, {});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

JobSpec TwoByTwo(Architecture architecture, int zero) {
  JobSpec job = ToyJob(architecture);
  job.layout.stages = 2;
  job.layout.replicas = 2;
  job.layout.zero = zero;
  return job;
}

class OracleTest : public ::testing::TestWithParam<Architecture> {};

TEST_P(OracleTest, OneRankTrainsAsANaiveLoopDoes) {
  const JobSpec job = ToyJob(GetParam());
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  NaiveTraining naive(job);
  bool clipped = false;
  for (int64_t step = 1; step <= job.steps; ++step) {
    const auto actual = cluster->Step(step, ToySamples(job));
    ASSERT_TRUE(actual.ok()) << actual.status();
    const auto expected = naive.Step(step, ToySamples(job));
    EXPECT_NEAR(actual->report.loss, expected.loss, 1e-5 * expected.loss) << step;
    EXPECT_NEAR(actual->report.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm)
        << step;
    clipped = clipped || expected.gradient_norm > job.gradient_clip_norm;
  }
  EXPECT_TRUE(clipped);
  for (const UnitState& state : cluster->engine(0).States()) {
    for (int64_t e = state.begin; e < state.end; ++e) {
      EXPECT_NEAR(state.master[static_cast<size_t>(e - state.begin)],
                  naive.master()[static_cast<size_t>(state.unit)][static_cast<size_t>(e)], 1e-4)
          << "unit " << state.unit << " element " << e;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, OracleTest,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& test) { return ArchitectureName(test.param); });

TEST(EngineTest, LossFalls) {
  JobSpec job = TwoByTwo(Architecture::kGpt2, 3);
  job.steps = 60;
  job.gradient_clip_norm = 1;
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  double first = 0, last = 0;
  for (int64_t step = 1; step <= job.steps; ++step) {
    const auto result = cluster->Step(step, ToySamples(job));
    ASSERT_TRUE(result.ok()) << result.status();
    (step == 1 ? first : last) = result->report.loss;
  }
  EXPECT_NEAR(first, std::log(64.0), 0.1);  // of uniform guessing
  EXPECT_LT(last, 0.8 * first);
}

double TimeWithACause(const StepReport& report) {
  return report.compute_seconds + report.bubble_seconds + report.exposed_shard_seconds;
}

// On a busy machine threads wait for a processor, which is no cause of any rank: so of some steps
// the best.
TEST(EngineTest, MostOfAStepHasACause) {
  const JobSpec job = TwoByTwo(Architecture::kLlama, 1);
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  double most = 0;
  for (int64_t step = 1; step <= 50 && most < 0.5; ++step) {
    const auto result = cluster->Step(step, ToySamples(job));
    ASSERT_TRUE(result.ok()) << result.status();
    most = std::max(most, TimeWithACause(result->report) / result->report.step_seconds);
  }
  EXPECT_GE(most, 0.5);
}

TEST(EngineTest, ReportsTheStep) {
  JobSpec job = TwoByTwo(Architecture::kLlama, 1);
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  const auto result = cluster->Step(2, ToySamples(job));
  ASSERT_TRUE(result.ok()) << result.status();
  const StepReport& report = result->report;
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.tokens, 7 * 8);
  int64_t valid = 0;
  for (int64_t sample = 7; sample < 14; ++sample) valid += 8 - sample * 5 % 9;
  EXPECT_EQ(report.valid_tokens, valid);
  EXPECT_EQ(report.learning_rate,
            LearningRate(job.schedule, job.adamw.learning_rate, 2, job.steps));
  EXPECT_FALSE(report.skipped);
  EXPECT_FALSE(report.non_finite.found);
  EXPECT_GT(report.step_seconds, 0);
  EXPECT_GT(report.compute_seconds, 0);
  EXPECT_LE(TimeWithACause(report), report.step_seconds * (1 + 1e-9));
  // Four micro-batches hold seven samples; rank 0 is the first stage of replica 0, with two full
  // ones.
  const auto bytes = [&](Op op) { return report.op_bytes[static_cast<size_t>(op)]; };
  EXPECT_EQ(bytes(Op::kSendAct), 4 * 8 * 16 * 4);
  EXPECT_EQ(bytes(Op::kRecvGrad), 4 * 8 * 16 * 4);
  EXPECT_EQ(bytes(Op::kSendGrad), 0);
  EXPECT_GT(bytes(Op::kReduce), 0);
  EXPECT_GT(bytes(Op::kGather), 0);
  EXPECT_GT(report.op_seconds[static_cast<size_t>(Op::kForward)], 0);
  EXPECT_EQ(cluster->engine(0).updates(), 1);
}

TEST(EngineTest, ReadsEachSampleOfTheStepOnceForEachEndOfThePipeline) {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.layout.stages = 4;
  job.layout.replicas = 3;
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  std::mutex mutex;
  std::multiset<int64_t> seen;
  const SampleReader toy = ToySamples(job);
  const SampleReader samples = [&](int64_t first, int64_t count, std::span<int32_t> inputs,
                                   std::span<int32_t> targets) {
    EXPECT_EQ(inputs.size(), static_cast<size_t>(count * 8));
    EXPECT_EQ(targets.size(), inputs.size());
    EXPECT_TRUE(toy(first, count, inputs, targets).ok());
    const std::lock_guard lock(mutex);
    for (int64_t n = 0; n < count; ++n) seen.insert(first + n);
    return absl::OkStatus();
  };
  ASSERT_TRUE(cluster->Step(3, samples).ok());
  EXPECT_EQ(seen.size(), 14u);
  for (int64_t sample = 14; sample < 21; ++sample) EXPECT_EQ(seen.count(sample), 2u) << sample;
}

TEST(EngineTest, EvaluateIsTheMeanOverAllTokensAndChangesNothing) {
  JobSpec job = TwoByTwo(Architecture::kGpt2, 3);
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  const std::vector<float> before = cluster->StateBits();
  const auto loss = cluster->Evaluate(2, ToySamples(job));
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(cluster->StateBits(), before);
  EXPECT_EQ(cluster->engine(1).updates(), 0);

  // Without updates in between, the losses of two steps weigh by their tokens.
  job.adamw.learning_rate = 0;
  const auto other = MakeCluster(job);
  ASSERT_NE(other, nullptr);
  double sum = 0, tokens = 0;
  for (int64_t step = 1; step <= 2; ++step) {
    const auto result = other->Step(step, ToySamples(job));
    ASSERT_TRUE(result.ok());
    sum += result->report.loss * static_cast<double>(result->report.valid_tokens);
    tokens += static_cast<double>(result->report.valid_tokens);
  }
  EXPECT_NEAR(*loss, sum / tokens, 1e-12);
}

// Several small units in each group, beside a large table.
TEST(EngineTest, JoinedInstructionsChangeNoBit) {
  for (Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    for (int zero : {0, 1, 2}) {
      JobSpec job = ToyJob(Architecture::kLlama);
      job.model.vocab_size = 1024;
      job.numerics = numerics;
      job.layout.replicas = 3;
      job.layout.zero = zero;
      const absl::StatusOr<Plan> joined = PlanOf(job);
      ASSERT_TRUE(joined.ok()) << joined.status();
      Plan apart = *joined;
      int members = 0;
      for (Program& program : apart.train) {
        for (Instruction& i : program.instructions) members += std::exchange(i.joined, false);
      }
      EXPECT_GE(members, zero == 1 ? 4 : 2);
      const auto one = LocalCluster::Make(job, *joined, {});
      const auto other = LocalCluster::Make(job, apart, {});
      ASSERT_TRUE(one.ok() && other.ok());
      for (int64_t step = 1; step <= 3; ++step) {
        const auto a = (*one)->Step(step, ToySamples(job));
        const auto b = (*other)->Step(step, ToySamples(job));
        ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
        EXPECT_EQ(a->report.loss, b->report.loss);
        EXPECT_EQ(a->report.gradient_norm, b->report.gradient_norm);
        EXPECT_EQ(a->parameter_hash, b->parameter_hash);
        EXPECT_EQ(a->report.op_bytes, b->report.op_bytes);
      }
      EXPECT_EQ((*one)->StateBits(), (*other)->StateBits());
    }
  }
}

TEST(EngineTest, EvaluateWithoutValidTargetsIsRefused) {
  const JobSpec job = TwoByTwo(Architecture::kGpt2, 0);
  const auto cluster = MakeCluster(job);
  ASSERT_NE(cluster, nullptr);
  const SampleReader nothing = [](int64_t, int64_t, std::span<int32_t> inputs,
                                  std::span<int32_t> targets) {
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnoredTarget);
    return absl::OkStatus();
  };
  EXPECT_EQ(cluster->Evaluate(1, nothing).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineTest, StatesOfAllRanksAreEachElementOnce) {
  for (int zero = 0; zero <= 3; ++zero) {
    JobSpec job = ToyJob(Architecture::kGpt2);
    job.layout.stages = 2;
    job.layout.replicas = 3;
    job.layout.zero = zero;
    const auto cluster = MakeCluster(job);
    ASSERT_NE(cluster, nullptr);
    std::vector<int64_t> elements(MakeUnits(job.model).size());
    for (int rank = 0; rank < cluster->num_ranks(); ++rank) {
      for (const UnitState& state : cluster->engine(rank).States()) {
        const auto size = static_cast<size_t>(state.end - state.begin);
        EXPECT_EQ(state.master.size(), size);
        EXPECT_EQ(state.m.size(), size);
        EXPECT_EQ(state.v.size(), size);
        elements[static_cast<size_t>(state.unit)] += state.end - state.begin;
      }
    }
    const std::vector<UnitSpec> units = MakeUnits(job.model);
    for (size_t u = 0; u < units.size(); ++u) {
      EXPECT_EQ(elements[u], units[u].owner < 0 ? units[u].flat_elements : 0) << u;
    }
  }
}

TEST(EngineTest, MakeRefusesWhatDoesNotFit) {
  const JobSpec job = TwoByTwo(Architecture::kGpt2, 0);
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto device = MakeCpuDevice({});
  const auto kernels = MakeCpuKernels(1);
  const auto transports = MakeInprocTransports(4);
  const auto make = [&](const Plan& its_plan, const JobSpec& its_job, int rank) {
    return Engine::Make(its_plan, its_job, {.rank = rank}, *device, *kernels, *transports[1])
        .status();
  };
  EXPECT_TRUE(make(*plan, job, 1).ok());
  EXPECT_THAT(std::string(make(*plan, job, 2).message()), HasSubstr("rank 2 of 4"));
  JobSpec other = job;
  other.model.num_layers = 4;
  EXPECT_EQ(make(*plan, other, 1).code(), absl::StatusCode::kInvalidArgument);
  Plan broken = *plan;
  broken.train[0].instructions.pop_back();
  EXPECT_EQ(make(broken, job, 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace esteira
