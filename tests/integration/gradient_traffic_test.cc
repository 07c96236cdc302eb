// Gradients that travel as bf16: every layout gives the sums of the rounded contributions of the
// replicas, added up in fp32 in their order, to the bit. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/integration/rules.h"
#include "tests/worker/engine/local_cluster.h"

namespace esteira {
namespace {

using Flat = std::vector<std::vector<double>>;  // by unit

constexpr int64_t kSamples = 4;  // of a replica: two micro-batches
constexpr int64_t kTokens = 64;  // that count, of the global batch

// With no first moment and no clip, m after one step is the sum of gradients over the tokens: a
// power of two here, so that nothing is lost in the division.
JobSpec JobWithoutMomentum(int replicas) {
  JobSpec job = ToyJob(Architecture::kLlama);
  job.adamw.beta1 = 0;
  job.gradient_clip_norm = 0;
  job.global_batch_size = kSamples * replicas;
  job.layout.replicas = replicas;
  return job;
}

// Of two replicas all tokens count; of three, half of those of the second and third.
bool Counts(int replicas, int64_t sample, int64_t t) {
  return replicas == 2 || sample < kSamples || t < 4;
}

// The sums of all units after one step on `count` samples from `first`.
Flat SumsOf(JobSpec job, int64_t first, int64_t count, int64_t tokens) {
  const int replicas = static_cast<int>(job.global_batch_size / kSamples);
  job.global_batch_size = count;
  const SampleReader counted = SamplesWhere(
      job, [replicas](int64_t sample, int64_t t) { return Counts(replicas, sample, t); });
  const SampleReader samples = [&](int64_t begin, int64_t size, std::span<int32_t> inputs,
                                   std::span<int32_t> targets) {
    return counted(first + begin, size, inputs, targets);
  };
  const auto cluster = LocalCluster::Make(job, {});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  const auto step = (*cluster)->Step(1, samples);
  EXPECT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->report.valid_tokens, tokens);
  Flat sums = StateOf(**cluster).m;
  for (std::vector<double>& unit : sums) {
    for (double& sum : unit) sum *= static_cast<double>(tokens);
  }
  return sums;
}

Flat Alone(JobSpec job, int replica, int64_t first, int64_t count) {
  const int64_t tokens = count * (Counts(*job.layout.replicas, replica * kSamples, 7) ? 8 : 4);
  job.layout.replicas = 1;
  job.gradient_traffic = GradientTraffic::kFull;
  return SumsOf(job, replica * kSamples + first, count, tokens);
}

// The nearest bf16, of two equally near the one whose last bit is 0.
float Rounded(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const auto below = std::bit_cast<float>(bits & 0xffff0000u);
  const auto above = std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u);
  const double down = std::abs(value - below), up = std::abs(above - value);
  if (down != up) return down < up ? below : above;
  return (bits & 0x10000u) == 0 ? below : above;
}

// Adds up rounded contributions of the replicas, then those of the windows.
Flat Expected(const JobSpec& job) {
  const bool one_window = *job.layout.reduce_every == kAll;
  const int64_t samples = one_window ? kSamples : *job.layout.micro_batch_size;
  Flat sums;
  for (int64_t first = 0; first < kSamples; first += samples) {
    Flat window;
    for (int replica = 0; replica < *job.layout.replicas; ++replica) {
      const Flat part = Alone(job, replica, first, samples);
      window.resize(part.size());
      for (size_t u = 0; u < part.size(); ++u) {
        window[u].resize(part[u].size());
        for (size_t i = 0; i < part[u].size(); ++i) {
          window[u][i] = static_cast<float>(window[u][i]) + Rounded(part[u][i]);
        }
      }
    }
    sums.resize(window.size());
    for (size_t u = 0; u < window.size(); ++u) {
      sums[u].resize(window[u].size());
      for (size_t i = 0; i < window[u].size(); ++i) {
        sums[u][i] = static_cast<float>(sums[u][i]) + static_cast<float>(window[u][i]);
      }
    }
  }
  return sums;
}

TEST(GradientTrafficTest, SumsAreThoseOfRoundedContributionsInTheOrderOfReplicas) {
  for (int replicas : {2, 3}) {
    JobSpec job = JobWithoutMomentum(replicas);
    job.gradient_traffic = GradientTraffic::kBf16;
    for (int reduce_every : {kAll, 1}) {
      job.layout.reduce_every = reduce_every;
      const Flat expected = Expected(job);
      for (int zero = 0; zero <= 3; ++zero) {
        job.layout.zero = zero;
        EXPECT_EQ(SumsOf(job, 0, job.global_batch_size, kTokens), expected)
            << LayoutText(job.layout);
      }
    }
  }
}

// |error| <= 2^-8 of the sum of magnitudes, and some of it is there.
TEST(GradientTrafficTest, TheErrorIsWithinItsBound) {
  JobSpec job = JobWithoutMomentum(3);
  const Flat full = SumsOf(job, 0, job.global_batch_size, kTokens);
  job.gradient_traffic = GradientTraffic::kBf16;
  const Flat bf16 = SumsOf(job, 0, job.global_batch_size, kTokens);
  Flat parts[3];
  for (int replica = 0; replica < 3; ++replica) {
    parts[replica] = Alone(job, replica, 0, kSamples);
  }
  double worst = 0;
  for (size_t u = 0; u < full.size(); ++u) {
    for (size_t i = 0; i < full[u].size(); ++i) {
      const double size =
          std::abs(parts[0][u][i]) + std::abs(parts[1][u][i]) + std::abs(parts[2][u][i]);
      const double error = std::abs(bf16[u][i] - full[u][i]);
      EXPECT_LE(error, std::ldexp(size, -8) * (1 + 1e-4)) << u << " " << i;
      if (size > 0) worst = std::max(worst, error / size);
    }
  }
  EXPECT_GT(worst, std::ldexp(1, -10));
}

std::vector<std::pair<double, uint64_t>> Train(const JobSpec& job, int64_t steps) {
  std::vector<std::pair<double, uint64_t>> bits;
  const auto cluster = LocalCluster::Make(job, {});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return bits;
  for (int64_t step = 1; step <= steps; ++step) {
    const auto result = (*cluster)->Step(step, ToySamples(job));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return bits;
    bits.emplace_back(result->report.gradient_norm, result->parameter_hash);
  }
  return bits;
}

TEST(GradientTrafficTest, LayoutsOfTheSameReplicasAndWindowsGiveTheSameBits) {
  const std::pair<int, const char*> pipelines[] = {
      {1, "1f1b"}, {2, "1f1b"}, {2, "gpipe"}, {3, "zb_h1"}};
  for (Architecture architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    for (Precision precision : {Precision::kFp32, Precision::kBf16}) {
      for (int replicas : {2, 3}) {
        JobSpec job = ToyJob(architecture);
        job.precision = precision;
        job.global_batch_size = 11;
        job.gradient_traffic = GradientTraffic::kBf16;
        job.layout.replicas = replicas;
        job.layout.reduce_every = replicas == 2 ? kAll : 1;
        const auto first = Train(job, 4);
        for (const auto& [stages, schedule] : pipelines) {
          for (int zero = 0; zero <= 3; ++zero) {
            job.layout.stages = stages;
            job.layout.schedule = schedule;
            job.layout.zero = zero;
            EXPECT_EQ(Train(job, 4), first) << LayoutText(job.layout);
          }
        }
      }
    }
  }
}

TEST(GradientTrafficTest, OneReplicaRoundsNothingAndSeveralDo) {
  for (int replicas : {1, 2}) {
    JobSpec job = ToyJob(Architecture::kGpt2);
    job.layout.replicas = replicas;
    const auto full = Train(job, 2);
    job.gradient_traffic = GradientTraffic::kBf16;
    EXPECT_EQ(Train(job, 2) == full, replicas == 1);
  }
}

TEST(GradientTrafficTest, ReductionsMoveFewerBytes) {
  for (const auto& [zero, share] : {std::pair{0, 0.75}, {1, 0.5}, {2, 0.5}, {3, 0.5}}) {
    JobSpec job = ToyJob(Architecture::kLlama);
    job.layout.replicas = 3;
    job.layout.zero = zero;
    double reduced[2], sent[2];
    for (GradientTraffic traffic : {GradientTraffic::kFull, GradientTraffic::kBf16}) {
      job.gradient_traffic = traffic;
      const auto cluster = LocalCluster::Make(job, {});
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      const auto step = (*cluster)->Step(1, ToySamples(job));
      ASSERT_TRUE(step.ok()) << step.status();
      const auto which = static_cast<size_t>(traffic);
      reduced[which] = static_cast<double>(step->report.op_bytes[static_cast<size_t>(Op::kReduce)]);
      sent[which] = static_cast<double>((*cluster)->transport(0).counters().bytes_sent);
    }
    EXPECT_EQ(reduced[1], share * reduced[0]) << "ZeRO " << zero;
    // What the report says is what the transport has sent.
    EXPECT_EQ(sent[0] - sent[1], reduced[0] - reduced[1]) << "ZeRO " << zero;
  }
}

}  // namespace
}  // namespace esteira
