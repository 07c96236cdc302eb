// A layout may change speed and memory; it may not change what is learned. Every layout of a small
// grid trains as one rank does, and to the bit as every other layout with the same replicas and
// reduction window. Ranks are threads.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <tuple>

#include "tests/worker/engine/local_cluster.h"

namespace esteira {
namespace {

// One step of a run, as bits.
struct StepBits {
  uint64_t loss, gradient_norm, parameter_hash;
  bool operator==(const StepBits&) const = default;
};

struct Trace {
  std::vector<StepBits> bits;
  std::vector<double> losses;
  uint64_t evaluation = 0;  // before the first step
  bool clipped = false;
};

Trace Train(const JobSpec& job, int64_t steps) {
  Trace trace;
  const auto cluster = LocalCluster::Make(job, {});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return trace;
  const auto evaluation = (*cluster)->Evaluate(1, ToySamples(job));
  EXPECT_TRUE(evaluation.ok()) << evaluation.status();
  if (!evaluation.ok()) return trace;
  trace.evaluation = std::bit_cast<uint64_t>(*evaluation);
  for (int64_t step = 1; step <= steps; ++step) {
    const auto result = (*cluster)->Step(step, ToySamples(job));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return trace;
    const StepReport& report = result->report;
    EXPECT_FALSE(report.skipped);
    trace.losses.push_back(report.loss);
    trace.bits.push_back({std::bit_cast<uint64_t>(report.loss),
                          std::bit_cast<uint64_t>(report.gradient_norm), result->parameter_hash});
    trace.clipped = trace.clipped || report.gradient_norm > job.gradient_clip_norm;
  }
  return trace;
}

JobSpec WithLayout(JobSpec job, int stages, int replicas, int zero, const char* schedule,
                   int reduce_every) {
  job.layout.stages = stages;
  job.layout.replicas = replicas;
  job.layout.zero = zero;
  job.layout.schedule = schedule;
  job.layout.reduce_every = reduce_every;
  return job;
}

// Compares runs of one job: each with the oracle, and with the first of its own group.
class Comparison {
 public:
  Comparison(const JobSpec& job, int64_t steps) : steps_(steps), oracle_(Train(job, steps)) {
    EXPECT_EQ(oracle_.losses.size(), static_cast<size_t>(steps));
    EXPECT_TRUE(oracle_.clipped);
  }

  void Check(const JobSpec& job) {
    SCOPED_TRACE(LayoutText(job.layout));
    const Trace trace = Train(job, steps_);
    ASSERT_EQ(trace.losses.size(), oracle_.losses.size());
    for (size_t i = 0; i < trace.losses.size(); ++i) {
      ASSERT_NEAR(trace.losses[i], oracle_.losses[i], 1e-5 * oracle_.losses[i]) << "step " << i + 1;
    }
    // Loss alone needs no sum of gradients: it is the oracle's to the bit.
    EXPECT_EQ(trace.evaluation, oracle_.evaluation);
    EXPECT_EQ(trace.bits[0].loss, oracle_.bits[0].loss);
    const auto group = std::make_tuple(*job.layout.replicas, *job.layout.reduce_every);
    const auto [first, inserted] = first_of_group_.try_emplace(group, trace.bits);
    for (size_t i = 0; i < trace.bits.size(); ++i) {
      ASSERT_EQ(trace.bits[i].loss, first->second[i].loss) << "step " << i + 1;
      ASSERT_EQ(trace.bits[i].gradient_norm, first->second[i].gradient_norm) << "step " << i + 1;
      ASSERT_EQ(trace.bits[i].parameter_hash, first->second[i].parameter_hash) << "step " << i + 1;
    }
  }

 private:
  const int64_t steps_;
  const Trace oracle_;
  std::map<std::tuple<int, int>, std::vector<StepBits>> first_of_group_;
};

class EquivalenceTest : public ::testing::TestWithParam<Architecture> {
 protected:
  // The grid of ZeRO levels, stages and schedules for one number of replicas.
  void CheckGrid(int replicas) {
    const JobSpec job = ToyJob(GetParam());
    Comparison comparison(job, job.steps);
    for (int reduce_every : {kAll, 1}) {
      for (int stages : {1, 2, 4}) {
        for (int zero = 0; zero <= 3; ++zero) {
          for (const char* schedule : {"gpipe", "1f1b"}) {
            comparison.Check(WithLayout(job, stages, replicas, zero, schedule, reduce_every));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
};

TEST_P(EquivalenceTest, OneReplica) { CheckGrid(1); }
TEST_P(EquivalenceTest, TwoReplicas) { CheckGrid(2); }
TEST_P(EquivalenceTest, ThreeReplicasOneOfThemWithoutSamples) { CheckGrid(3); }

TEST_P(EquivalenceTest, ThreeReplicasWithSamplesAddTheirGradientsInOneOrder) {
  JobSpec job = ToyJob(GetParam());
  job.global_batch_size = 11;  // two micro-batches each, the last one short
  Comparison comparison(job, 8);
  for (int reduce_every : {kAll, 1}) {
    for (int stages : {1, 2}) {
      for (int zero = 0; zero <= 3; ++zero) {
        comparison.Check(WithLayout(job, stages, 3, zero, "1f1b", reduce_every));
      }
    }
  }
}

TEST_P(EquivalenceTest, GatherWindowsAndRecomputeChangeNoBit) {
  const JobSpec job = ToyJob(GetParam());
  Comparison comparison(job, 6);
  comparison.Check(WithLayout(job, 2, 2, 0, "1f1b", kAll));
  for (int stages : {1, 2}) {
    for (const char* recompute : {"none", "full"}) {
      for (int gather_for : {1, 2, kAll}) {
        JobSpec with = WithLayout(job, stages, 2, 3, "1f1b", kAll);
        with.layout.recompute = recompute;
        with.layout.gather_for = gather_for;
        comparison.Check(with);
      }
    }
  }
}

TEST_P(EquivalenceTest, Bf16TrainsAndItsBitsDoNotDependOnStagesScheduleOrZero) {
  JobSpec job = ToyJob(GetParam());
  job.precision = Precision::kBf16;
  for (int replicas : {1, 2}) {
    const Trace first = Train(WithLayout(job, 1, replicas, 0, "1f1b", kAll), job.steps);
    ASSERT_EQ(first.losses.size(), static_cast<size_t>(job.steps));
    EXPECT_LT(first.losses.back(), 0.9 * first.losses.front());
    for (int stages : {1, 2, 4}) {
      for (int zero : {0, 1, 2, 3}) {
        const char* schedule = zero % 2 == 0 ? "gpipe" : "1f1b";
        const JobSpec other = WithLayout(job, stages, replicas, zero, schedule, kAll);
        SCOPED_TRACE(LayoutText(other.layout));
        ASSERT_EQ(Train(other, job.steps).bits, first.bits);
      }
    }
  }
}

TEST_P(EquivalenceTest, FewerMicroBatchesThanStagesAndReplicas) {
  JobSpec job = ToyJob(GetParam());
  job.global_batch_size = 1;  // sample 0 of each step's batch, some of them with few targets
  job.gradient_clip_norm = 0.1;
  Comparison comparison(job, 5);
  comparison.Check(WithLayout(job, 4, 1, 2, "1f1b", kAll));
  comparison.Check(WithLayout(job, 4, 3, 3, "gpipe", kAll));
  comparison.Check(WithLayout(job, 1, 3, 0, "1f1b", kAll));
}

// Exact numerics: one reference for all replicas and windows, over many steps, and from there on
// whatever the first step has rounded.
TEST_P(EquivalenceTest, ExactNumericsGiveTheBitsOfOneRank) {
  for (Precision precision : {Precision::kFp32, Precision::kBf16}) {
    JobSpec job = ToyJob(GetParam());
    job.numerics = Numerics::kExact;
    job.precision = precision;
    job.global_batch_size = 11;  // six micro-batches, the last one short
    const Trace oracle = Train(job, job.steps);
    ASSERT_EQ(oracle.losses.size(), static_cast<size_t>(job.steps));
    EXPECT_LT(oracle.losses.back(), 0.9 * oracle.losses.front());
    for (int replicas : {1, 2, 3, 4, 5}) {
      for (int reduce_every : {kAll, 1, 2}) {
        const int zero = (replicas + reduce_every) % 4;
        const int stages = 1 + (replicas + 2 * reduce_every) % 3;
        JobSpec other = WithLayout(job, stages, replicas, zero, "1f1b", reduce_every);
        other.layout.recompute = replicas % 2 == 0 ? "full" : "none";
        SCOPED_TRACE(LayoutText(other.layout));
        const Trace trace = Train(other, job.steps);
        ASSERT_EQ(trace.bits, oracle.bits);
        ASSERT_EQ(trace.evaluation, oracle.evaluation);
      }
    }
  }
}

// What exactness costs in accuracy is nothing that training sees: fast numerics stay near.
// Recomputation forms the same masks again, and no layout moves them.
TEST_P(EquivalenceTest, DropoutDoesNotDependOnTheLayoutOrRecomputation) {
  JobSpec job = ToyJob(GetParam());
  job.numerics = Numerics::kExact;
  const Trace without = Train(job, 4);
  job.dropout = 0.3;
  const Trace oracle = Train(job, 4);
  EXPECT_NE(oracle.bits[0].loss, without.bits[0].loss) << "it drops something";
  EXPECT_EQ(oracle.evaluation, without.evaluation) << "and nothing in an evaluation";
  job.seed ^= 1;
  EXPECT_NE(Train(job, 1).bits[0].loss, oracle.bits[0].loss);
  job.seed ^= 1;
  for (const char* recompute : {"none", "full"}) {
    for (const auto& [stages, replicas, zero, schedule] :
         {std::tuple{2, 2, 3, "zb_h1"}, {3, 1, 0, "1f1b"}, {1, 3, 2, "gpipe"}}) {
      JobSpec other = WithLayout(job, stages, replicas, zero, schedule, 1);
      other.layout.recompute = recompute;
      EXPECT_EQ(Train(other, 4).bits, oracle.bits) << LayoutText(other.layout);
    }
  }
}

TEST_P(EquivalenceTest, ExactNumericsAreCloseToFast) {
  JobSpec job = ToyJob(GetParam());
  const Trace fast = Train(job, job.steps);
  job.numerics = Numerics::kExact;
  const Trace exact = Train(job, job.steps);
  ASSERT_EQ(fast.losses.size(), exact.losses.size());
  EXPECT_EQ(fast.bits[0].loss, exact.bits[0].loss);
  EXPECT_NEAR(std::bit_cast<double>(fast.bits[0].gradient_norm),
              std::bit_cast<double>(exact.bits[0].gradient_norm), 1e-7);
  for (size_t i = 0; i < fast.losses.size(); ++i) {
    ASSERT_NEAR(fast.losses[i], exact.losses[i], 1e-5 * fast.losses[i]) << "step " << i + 1;
  }
}

// Its gradient sums travel between the ends in two pieces, and its reduction is large enough for a
// ring.
class LargeTableTest : public ::testing::TestWithParam<Numerics> {};

TEST_P(LargeTableTest, IsTiedAndReducedAsASmallOne) {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.numerics = GetParam();
  job.model.vocab_size = 70000;
  job.global_batch_size = 3;
  job.layout.micro_batch_size = 1;
  job.gradient_clip_norm = 0.01;
  Comparison comparison(job, 2);
  for (int replicas : {1, 3}) {
    for (int stages : {1, 2}) {
      for (int zero : {0, 3}) {
        comparison.Check(WithLayout(job, stages, replicas, zero, "1f1b", kAll));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, LargeTableTest,
                         ::testing::Values(Numerics::kFast, Numerics::kExact),
                         [](const auto& test) { return NumericsName(test.param); });

INSTANTIATE_TEST_SUITE_P(Architectures, EquivalenceTest,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& test) { return ArchitectureName(test.param); });

}  // namespace
}  // namespace esteira
