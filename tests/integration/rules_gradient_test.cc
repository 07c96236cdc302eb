// What reaches the optimizer: one mean over the tokens that count, one norm, one clip.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "tests/integration/rules.h"
#include "tests/worker/engine/naive_training.h"
#include "tests/worker/engine/poisoned_kernels.h"

namespace esteira {
namespace {

bool Always(int64_t, int64_t) { return true; }

// Accumulation factor applied by each stage, by each micro-batch, or twice: the gradient of the
// same seven samples is the same in one micro-batch and in seven.
TEST_P(RulesTest, AnAccumulationFactorReachesNoStageAndNoMicroBatch) {
  for (int micro_batch_size : {1, 2, 7}) {
    job_.layout.micro_batch_size = micro_batch_size;
    ExpectInEach({{}, {.stages = 3}, {.stages = 3, .reduce_every = 1}, {.schedule = "gpipe"}},
                 SamplesWhere(job_, Always));
  }
}

// The gradient is the derivative of exactly the loss that is reported: along the gradient of each
// unit the loss rises by the length of it, by differences of losses alone.
TEST_P(RulesTest, TheGradientIsTheDerivativeOfTheReportedLoss) {
  job_ = In(job_, {.stages = 2, .replicas = 2, .zero = 2});
  job_.gradient_clip_norm = 0;
  const auto cluster = LocalCluster::Make(job_, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  NaiveTraining naive(job_);
  const SampleReader samples = ToySamples(job_);
  const auto step = (*cluster)->Step(1, samples);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_NEAR(step->report.loss, naive.LossAt(naive.master(), 1, samples), 1e-6);
  const WholeState state = StateOf(**cluster);
  for (size_t u = 0; u < state.m.size(); ++u) {
    std::vector<double> gradient = state.m[u];
    for (double& g : gradient) g /= 1 - job_.adamw.beta1;
    const double length =
        std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
    if (length == 0) continue;  // a unit without parameters
    constexpr double kStep = 3e-3;
    double loss[2];
    for (int side : {0, 1}) {
      auto weights = naive.master();
      const double by = (side == 0 ? -kStep : kStep) / length;
      for (size_t i = 0; i < gradient.size(); ++i) weights[u][i] += by * gradient[i];
      loss[side] = naive.LossAt(weights, 1, samples);
    }
    EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), length, 2e-3 * length + 1e-4) << "unit " << u;
  }
}

// A norm summed over replicas is as many times too large, or its root; the clip follows it.
TEST_P(RulesTest, TheNormOfReplicasIsThatOfTheirMeanGradient) {
  for (int zero = 0; zero <= 3; ++zero) {
    ExpectInEach({{.replicas = 2, .zero = zero}, {.stages = 2, .replicas = 3, .zero = zero}},
                 SamplesWhere(job_, Always), 2);
  }
}

TEST_P(RulesTest, AReplicaGroupOfOneIsAGroup) {
  for (int zero = 0; zero <= 3; ++zero) {
    ExpectInEach({{.zero = zero}, {.stages = 3, .zero = zero, .reduce_every = 2}}, ToySamples(job_),
                 2);
  }
}

// Targets in one micro-batch alone, at each place in turn: the last one is not the only one that
// counts, nor the first, nor one of one replica.
TEST_P(RulesTest, EveryMicroBatchCounts) {
  for (int64_t counted = 0; counted < 4; ++counted) {
    const SampleReader samples = SamplesWhere(
        job_, [counted](int64_t sample, int64_t) { return sample % 7 / 2 == counted; });
    ExpectInEach({{},
                  {.stages = 2, .reduce_every = 1},
                  {.stages = 2, .replicas = 2, .zero = 1},
                  {.replicas = 2, .zero = 2, .reduce_every = 1}},
                 samples, 2);
  }
}

// Sample 0 of each batch has all its targets, the others one: a mean of the means of micro-batches
// or of replicas is another number.
TEST_P(RulesTest, UnequalNumbersOfTargetsWeighByToken) {
  const SampleReader samples = SamplesWhere(
      job_, [](int64_t sample, int64_t position) { return sample % 7 == 0 || position == 0; });
  NaiveTraining naive(job_);
  JobSpec one = job_;
  one.global_batch_size = 1;
  NaiveTraining each(one);
  double mean_of_means = 0;
  for (int64_t sample = 1; sample <= 7; ++sample) {
    mean_of_means += each.LossAt(each.master(), sample, samples) / 7;
  }
  EXPECT_GT(std::abs(mean_of_means - naive.LossAt(naive.master(), 1, samples)), 1e-3);
  ExpectInEach({{}, {.replicas = 2}, {.stages = 2, .replicas = 2, .zero = 3}, {.replicas = 4}},
               samples);
}

// A mean of no losses is not a number.
TEST_P(RulesTest, AMicroBatchOfIgnoredTargetsAddsNothing) {
  for (int64_t ignored = 0; ignored < 4; ++ignored) {  // the last is a replica's whole share of two
    const SampleReader samples = SamplesWhere(job_, [ignored](int64_t sample, int64_t) {
      return ignored < 3 ? sample % 7 / 2 != ignored : sample % 7 < 4;
    });
    ExpectInEach({{}, {.stages = 2}, {.stages = 2, .replicas = 2, .zero = 1}, {.replicas = 2}},
                 samples, 2);
  }
}

// The second batch counts nothing: no update, no decay, no step of the bias correction; but the
// learning rate goes on.
TEST_P(RulesTest, ABatchOfIgnoredTargetsMakesNoUpdate) {
  const SampleReader samples =
      SamplesWhere(job_, [](int64_t sample, int64_t) { return sample / 7 != 1; });
  ExpectInEach({{}, {.stages = 2, .replicas = 2, .zero = 1}, {.replicas = 2, .zero = 3}}, samples,
               4);
}

// Stages whose norms are far apart, clipped to a tenth: a clip by stage, or by rank, gives each its
// own factor.
TEST_P(RulesTest, TheClipIsOneFactorForAllStages) {
  job_.gradient_clip_norm = 0.05;
  for (int zero = 0; zero <= 3; ++zero) {
    ExpectInEach({{.stages = 3, .zero = zero}, {.stages = 3, .replicas = 2, .zero = zero}},
                 ToySamples(job_), 2);
  }
}

TEST_P(RulesTest, WithinTheClipNothingIsScaled) {
  job_.gradient_clip_norm = 1e3;
  ExpectInEach({{}, {.stages = 2, .replicas = 2, .zero = 2}}, ToySamples(job_));
}

// One element of the gradient of one rank: the norm is never negative, and either it is a number
// that everyone divides by, or nobody makes the step.
TEST_P(RulesTest, ANormIsANumberOrTheStepIsSkippedEverywhere) {
  const double kInfinity = std::numeric_limits<double>::infinity();
  for (double element : {0.0, 1e6, 3e38, kInfinity, -kInfinity, std::nan("")}) {
    SCOPED_TRACE(element);
    LocalCluster::Options options;
    options.kernels = [element](int rank) {
      return MakePoisonedKernels([=](absl::string_view name, Tensor output, Stream& stream) {
        if (rank != 3 || name != "LinearBackwardWeight") return;
        stream.Enqueue([output, element] {
          *output.as<float>() = static_cast<float>(element);
          return absl::OkStatus();
        });
      });
    };
    const JobSpec job = In(job_, {.stages = 2, .replicas = 2, .zero = 1});
    const auto cluster = LocalCluster::Make(job, options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    const std::vector<float> before = (*cluster)->StateBits();
    const auto step = (*cluster)->Step(1, SamplesWhere(job, Always));  // ranks are compared
    ASSERT_TRUE(step.ok()) << step.status();
    const double norm = step->report.gradient_norm;
    EXPECT_FALSE(norm < 0);
    const bool held =
        std::abs(element) < 1e7 || (std::isfinite(element) && job.numerics == Numerics::kFast);
    EXPECT_EQ(step->report.skipped, !held);
    EXPECT_EQ(std::isfinite(norm), held);
    EXPECT_EQ((*cluster)->StateBits() == before, !held);
    for (float value : (*cluster)->StateBits()) ASSERT_TRUE(std::isfinite(value));
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ((*cluster)->engine(rank).updates(), held ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace esteira
