// What goes wrong inside a step: values that are not finite, batches without targets, failures and
// aborts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/worker/engine/local_cluster.h"
#include "tests/worker/engine/poisoned_kernels.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

constexpr int kPoisonedRank = 2;  // stage 0 of replica 1, of two stages

// A GPT-2 over two stages and two replicas: rank 0 and 2 hold the embedding and a block at least.
JobSpec TestJob(int zero) {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.layout.stages = 2;
  job.layout.replicas = 2;
  job.layout.zero = zero;
  return job;
}

// Spoils the output of call number `call` (from 1) of an operation on one rank.
LocalCluster::Options SpoilCall(int rank, std::string operation, int call) {
  LocalCluster::Options options;
  options.kernels = [=](int its_rank) {
    auto calls = std::make_shared<std::atomic<int>>(0);
    return MakePoisonedKernels([=](absl::string_view name, Tensor output, Stream& stream) {
      if (its_rank != rank || name != operation) return;
      if (++*calls == call) Spoil(output, stream);
    });
  };
  return options;
}

int UnitsOnFirstStage(const Plan& plan) { return plan.layout.boundaries[1]; }

struct PoisonCase {
  const char* name;
  const char* operation;
  int call;         // on the poisoned rank, in the step
  bool last_block;  // the place is the last unit of the rank, not unit 1
  int micro_batch;
};

class PoisonTest : public ::testing::TestWithParam<std::tuple<int, PoisonCase>> {};

TEST_P(PoisonTest, IsAttributedOnEveryRankAndChangesNoBit) {
  const auto& [zero, poison] = GetParam();
  const JobSpec job = TestJob(zero);
  const auto made =
      LocalCluster::Make(job, SpoilCall(kPoisonedRank, poison.operation, poison.call));
  ASSERT_TRUE(made.ok()) << made.status();
  LocalCluster& cluster = **made;
  const std::vector<float> before = cluster.StateBits();

  const auto spoilt = cluster.Step(1, ToySamples(job));
  ASSERT_TRUE(spoilt.ok()) << spoilt.status();  // Step compared the place over the ranks
  const StepReport& report = spoilt->report;
  EXPECT_TRUE(report.skipped);
  ASSERT_TRUE(report.non_finite.found);
  EXPECT_EQ(report.non_finite.rank, kPoisonedRank);
  EXPECT_EQ(report.non_finite.unit, poison.last_block ? UnitsOnFirstStage(cluster.plan()) - 1 : 1);
  EXPECT_EQ(report.non_finite.micro_batch, poison.micro_batch);
  EXPECT_EQ(cluster.StateBits(), before);
  EXPECT_EQ(cluster.engine(0).updates(), 0);

  // The parameters, too: the next step is that of a job that begins there.
  const auto next = cluster.Step(2, ToySamples(job));
  const auto fresh = LocalCluster::Make(job, {});
  ASSERT_TRUE(fresh.ok());
  const auto expected = (*fresh)->Step(2, ToySamples(job));
  ASSERT_TRUE(next.ok() && expected.ok());
  EXPECT_FALSE(next->report.skipped);
  EXPECT_EQ(next->report.loss, expected->report.loss);
  EXPECT_EQ(next->parameter_hash, expected->parameter_hash);
  EXPECT_EQ(cluster.engine(0).updates(), 1);
}

// 1F1B on the first of two stages with two micro-batches: F0 F1 B0 B1.
INSTANTIATE_TEST_SUITE_P(
    Places, PoisonTest,
    ::testing::Combine(::testing::Values(0, 1, 2, 3),
                       ::testing::Values(PoisonCase{"forward", "GeluForward", 1, false, 0},
                                         PoisonCase{"backward", "GeluBackward", 1, true, 0},
                                         PoisonCase{"weights", "LinearBackwardWeight", 1, true,
                                                    -1})),
    [](const auto& test) {
      return std::string(std::get<1>(test.param).name) + "_zero" +
             std::to_string(std::get<0>(test.param));
    });

// A gradient of one micro-batch that fixed point cannot hold: it is finite in fp32, and without a
// bound its sum would wrap to a small number.
class RefusedTest : public ::testing::TestWithParam<std::tuple<int, float>> {};

TEST_P(RefusedTest, SkipsTheStepOnEveryRankAndNamesThePlace) {
  const auto [zero, value] = GetParam();
  JobSpec job = TestJob(zero);
  job.numerics = Numerics::kExact;
  job.layout.schedule = "zb_h1";
  LocalCluster::Options options;
  options.check_finite_each_op = false;
  options.kernels = [value = value](int rank) {
    auto calls = std::make_shared<std::atomic<int>>(0);
    return MakePoisonedKernels([=](absl::string_view name, Tensor output, Stream& stream) {
      if (rank != kPoisonedRank || name != "EmbeddingBackward" || ++*calls != 2) return;
      stream.Enqueue([output, value] {
        output.as<float>()[3] = value;
        return absl::OkStatus();
      });
    });
  };
  const auto made = LocalCluster::Make(job, options);
  ASSERT_TRUE(made.ok()) << made.status();
  LocalCluster& cluster = **made;
  const std::vector<float> before = cluster.StateBits();
  const auto result = cluster.Step(1, ToySamples(job));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->report.skipped);
  EXPECT_TRUE(std::isfinite(result->report.loss));
  EXPECT_EQ(result->report.gradient_norm, HUGE_VAL);
  EXPECT_TRUE(result->report.non_finite.found);
  EXPECT_EQ(result->report.non_finite.rank, kPoisonedRank);
  EXPECT_EQ(result->report.non_finite.unit, 0);
  EXPECT_EQ(result->report.non_finite.micro_batch, 1);
  EXPECT_EQ(cluster.StateBits(), before);

  // Nothing of it is left in the next step.
  const auto next = cluster.Step(2, ToySamples(job));
  const auto fresh = LocalCluster::Make(job, {});
  ASSERT_TRUE(fresh.ok());
  const auto expected = (*fresh)->Step(2, ToySamples(job));
  ASSERT_TRUE(next.ok() && expected.ok());
  EXPECT_FALSE(next->report.skipped);
  EXPECT_EQ(next->parameter_hash, expected->parameter_hash);
}

INSTANTIATE_TEST_SUITE_P(
    Values, RefusedTest,
    ::testing::Combine(::testing::Values(0, 1, 3),
                       ::testing::Values(3e38f, -1e9f, 268435456.0f /* its sum wraps to 0 */,
                                         std::numeric_limits<float>::infinity(),
                                         std::numeric_limits<float>::quiet_NaN())));

TEST(NonFiniteTest, ASpoiltParameterIsFoundWhereItIsUsedFirst) {
  const JobSpec job = TestJob(1);
  const auto made = LocalCluster::Make(job, SpoilCall(0, "AdamW", 1));
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_FALSE((*made)->Step(1, ToySamples(job))->report.skipped);
  const std::vector<float> before = (*made)->StateBits();
  const auto result = (*made)->Step(2, ToySamples(job));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->report.skipped);
  EXPECT_TRUE(std::isnan(result->report.loss) || std::isnan(result->report.gradient_norm));
  EXPECT_EQ(result->report.non_finite.rank, 0);
  EXPECT_EQ(result->report.non_finite.unit, 0);  // the first that STEP updated
  EXPECT_EQ(result->report.non_finite.micro_batch, 0);
  EXPECT_EQ((*made)->StateBits(), before);
  EXPECT_EQ((*made)->engine(3).updates(), 1);
}

TEST(NonFiniteTest, ASecondMicroBatchIsNamed) {
  JobSpec job = TestJob(0);
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok());
  const int blocks = UnitsOnFirstStage(*plan) - 1;
  const auto made = LocalCluster::Make(job, SpoilCall(kPoisonedRank, "GeluForward", blocks + 1));
  ASSERT_TRUE(made.ok());
  const auto result = (*made)->Step(1, ToySamples(job));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->report.non_finite.rank, kPoisonedRank);
  EXPECT_EQ(result->report.non_finite.unit, 1);
  EXPECT_EQ(result->report.non_finite.micro_batch, 1);
}

TEST(NonFiniteTest, WithoutChecksOfEachOpTheStepIsStillSkipped) {
  const JobSpec job = TestJob(2);
  LocalCluster::Options options = SpoilCall(0, "GeluForward", 1);
  options.check_finite_each_op = false;
  const auto made = LocalCluster::Make(job, options);
  ASSERT_TRUE(made.ok());
  const std::vector<float> before = (*made)->StateBits();
  const auto result = (*made)->Step(1, ToySamples(job));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->report.skipped);
  EXPECT_EQ(result->report.non_finite.unit, NumComputeUnits(job.model) - 1);  // in the loss
  EXPECT_EQ(result->report.non_finite.micro_batch, 0);
  EXPECT_EQ((*made)->StateBits(), before);
}

TEST(SkippedStepTest, ABatchWithoutValidTokensMakesNoUpdateAndIsCounted) {
  const JobSpec job = TestJob(2);
  const auto made = LocalCluster::Make(job, {});
  ASSERT_TRUE(made.ok());
  const std::vector<float> before = (*made)->StateBits();
  const SampleReader toy = ToySamples(job);
  const auto result = (*made)->Step(
      1, [&](int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets) {
        const absl::Status status = toy(first, count, inputs, targets);
        std::fill(targets.begin(), targets.end(), kIgnoredTarget);
        return status;
      });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->report.skipped);
  EXPECT_FALSE(result->report.non_finite.found);
  EXPECT_EQ(result->report.valid_tokens, 0);
  EXPECT_EQ(result->report.loss, 0);
  EXPECT_EQ((*made)->StateBits(), before);
  EXPECT_EQ((*made)->engine(0).updates(), 0);
}

// Steps on every rank; each one's status.
std::vector<absl::Status> StepStatuses(LocalCluster& cluster, const JobSpec& job) {
  std::vector<absl::Status> statuses(static_cast<size_t>(cluster.num_ranks()));
  EXPECT_TRUE(cluster
                  .OnEachRank([&](int rank) {
                    statuses[static_cast<size_t>(rank)] =
                        cluster.engine(rank).Step(1, ToySamples(job), false).status();
                    return absl::OkStatus();
                  })
                  .ok());
  return statuses;
}

TEST(FailureTest, AnAbortFromAnotherThreadEndsEveryRank) {
  for (int zero : {0, 3}) {
    const JobSpec job = TestJob(zero);
    LocalCluster* cluster_of_abort = nullptr;
    LocalCluster::Options options;
    options.timeout = absl::Hours(1);  // only the abort can end a transfer
    options.kernels = [&](int rank) {
      auto calls = std::make_shared<std::atomic<int>>(0);
      return MakePoisonedKernels([&, rank, calls](absl::string_view name, Tensor, Stream& stream) {
        if (rank != 1 || name != "GeluBackward" || ++*calls != 1) return;
        stream.Enqueue([&] {
          std::thread([&] {
            cluster_of_abort->transport(1).Abort(absl::AbortedError("epoch 3 is over"));
          }).join();
          return absl::OkStatus();
        });
      });
    };
    const auto made = LocalCluster::Make(job, options);
    ASSERT_TRUE(made.ok());
    cluster_of_abort = made->get();
    const absl::Time start = absl::Now();
    for (const absl::Status& status : StepStatuses(**made, job)) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr("epoch 3 is over"));
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_EQ((*made)->engine(0).updates(), 0);
  }
}

TEST(FailureTest, AFailureOnTheComputeQueueIsTheCauseThatEveryRankReports) {
  const JobSpec job = TestJob(1);
  LocalCluster::Options options;
  options.timeout = absl::Hours(1);
  options.kernels = [](int rank) {
    return MakePoisonedKernels([rank](absl::string_view name, Tensor, Stream& stream) {
      if (rank != 3 || name != "CrossEntropy") return;
      stream.Enqueue([] { return absl::InternalError("the kernel broke"); });
    });
  };
  const auto made = LocalCluster::Make(job, options);
  ASSERT_TRUE(made.ok());
  const std::vector<absl::Status> statuses = StepStatuses(**made, job);
  EXPECT_EQ(statuses[3], absl::InternalError("the kernel broke"));
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("the kernel broke"));
  }
  // The epoch is over: later steps report the same cause and do nothing.
  EXPECT_EQ(StepStatuses(**made, job)[3], absl::InternalError("the kernel broke"));
}

TEST(FailureTest, SamplesThatCannotBeReadEndEveryRank) {
  const JobSpec job = TestJob(1);
  LocalCluster::Options options;
  options.timeout = absl::Hours(1);
  const auto made = LocalCluster::Make(job, options);
  ASSERT_TRUE(made.ok());
  const SampleReader toy = ToySamples(job);
  const SampleReader broken = [&](int64_t first, int64_t count, std::span<int32_t> inputs,
                                  std::span<int32_t> targets) -> absl::Status {
    if (first == 4) return absl::UnavailableError("corpus.bin cannot be read");
    return toy(first, count, inputs, targets);
  };
  std::vector<absl::Status> statuses(4);
  ASSERT_TRUE((*made)
                  ->OnEachRank([&](int rank) {
                    statuses[static_cast<size_t>(rank)] =
                        (*made)->engine(rank).Step(1, broken, false).status();
                    return absl::OkStatus();
                  })
                  .ok());
  // Both ends of replica 1 read sample 4; the others hear of it.
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("corpus.bin cannot be read"));
  }
  EXPECT_EQ((*made)->engine(0).updates(), 0);
}

}  // namespace
}  // namespace esteira
