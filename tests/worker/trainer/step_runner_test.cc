#include "worker/trainer/step_runner.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/trainer/replay.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Changes what one unit gives, when `when` says so: a NaN in its forward pass, or a large number in
// its backward pass.
class Disturbed : public UnitCompute {
 public:
  using When = std::function<bool()>;
  Disturbed(std::unique_ptr<UnitCompute> unit, float value, When when)
      : unit_(std::move(unit)), value_(value), when_(std::move(when)) {}

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override {
    unit_->Forward(arguments, kernels, stream);
    if (std::isnan(value_)) DisturbTensor(arguments, arguments.y, stream);
  }
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override {
    unit_->BackwardInput(arguments, kernels, stream);
    if (!std::isnan(value_)) DisturbTensor(arguments, arguments.dx, stream);
  }
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override {
    unit_->BackwardWeight(arguments, kernels, stream);
  }

 private:
  void DisturbTensor(const UnitArguments& arguments, Tensor tensor, Stream& stream) const {
    if (arguments.batch == 0 || !when_()) return;
    stream.Enqueue([tensor, value = value_] {
      tensor.as<float>()[0] = value;
      return absl::OkStatus();
    });
  }

  std::unique_ptr<UnitCompute> unit_;
  float value_;
  When when_;
};

// Layer 1 of `rank` gives `value`; `when` sees how many forward passes it has made.
std::function<UnitFactory(int)> Disturb(int rank, float value, std::function<bool(int)> when) {
  auto passes = std::make_shared<std::atomic<int>>(0);
  return [=](int of) -> UnitFactory {
    return [=](const ModelSpec& model, const UnitSpec& unit, Precision precision) {
      std::unique_ptr<UnitCompute> made = MakeUnitCompute(model, unit, precision);
      if (of != rank || unit.layer != 1) return made;
      return std::unique_ptr<UnitCompute>(
          std::make_unique<Disturbed>(std::move(made), value, [=] { return when((*passes)++); }));
    };
  };
}

// Two stages of two replicas; 7 samples in micro-batches of 2, so two a replica.
constexpr int kPassesOfStep = 2;

struct WatchedRun {
  JobSpec job;
  std::unique_ptr<LocalCluster> cluster;
  std::vector<std::unique_ptr<StepRunner>> runners;

  explicit WatchedRun(const std::function<UnitFactory(int)>& units, double spike_factor = 0) {
    job = ToyJob(Architecture::kGpt2);
    job.layout.stages = 2;
    job.layout.replicas = 2;
    job.layout.zero = 2;
    job.spike_factor = spike_factor;
    LocalCluster::Options options;
    options.units = units;
    auto made = LocalCluster::Make(job, options);
    CHECK(made.ok());
    cluster = *std::move(made);
    for (int rank = 0; rank < cluster->num_ranks(); ++rank) {
      runners.push_back(std::make_unique<StepRunner>(
          StepRunner::Setting{cluster->plan(), job, rank, absl::Minutes(1),
                              [](int64_t sample) { return 1000 + sample; }},
          cluster->engine(rank), cluster->device(rank), cluster->transport(rank)));
    }
  }

  // What rank 0 has; all ranks have the same.
  StepRunner::Outcome Step(int64_t step) {
    std::vector<StepRunner::Outcome> outcomes(runners.size());
    const absl::Status status = cluster->OnEachRank([&](int rank) -> absl::Status {
      const auto at = static_cast<size_t>(rank);
      ASSIGN_OR_RETURN(outcomes[at], runners[at]->Run(step, ToySamples(job), false));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    for (const StepRunner::Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.finding, outcomes[0].finding);
      EXPECT_EQ(outcome.spike, outcomes[0].spike);
      EXPECT_EQ(outcome.report.skipped, outcomes[0].report.skipped);
    }
    return outcomes[0];
  }
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const auto kUndisturbed = [](int) -> UnitFactory { return MakeUnitCompute; };

std::vector<float> StatesAfter(WatchedRun& run, int64_t steps) {
  for (int64_t step = 1; step <= steps; ++step) run.Step(step);
  return run.cluster->StateBits();
}

TEST(StepRunnerTest, GoodStepsRunOnce) {
  WatchedRun run(kUndisturbed);
  for (int64_t step = 1; step <= 3; ++step) {
    const StepRunner::Outcome outcome = run.Step(step);
    EXPECT_EQ(outcome.finding, "");
    EXPECT_FALSE(outcome.report.skipped);
  }
  EXPECT_EQ(run.cluster->engine(0).updates(), 3);
}

TEST(StepRunnerTest, ABadStepThatComesAgainIsTheDatas) {
  // Passes of step 2 and of its second run, second micro-batch.
  WatchedRun run(Disturb(
      2, kNan, [](int pass) { return pass >= kPassesOfStep && pass % kPassesOfStep == 1; }));
  EXPECT_EQ(run.Step(1).finding, "");
  const StepRunner::Outcome outcome = run.Step(2);
  EXPECT_TRUE(outcome.report.skipped);
  EXPECT_TRUE(outcome.report.non_finite.found);
  // Replica 1 holds samples 4 to 6 of the batch of 7; the step before used 7.
  EXPECT_THAT(
      outcome.finding,
      AllOf(HasSubstr("step 2: a non-finite value, first in unit 2 (layer 1), micro-batch 1"),
            HasSubstr("on rank 2 (host "), HasSubstr("the same to the bit on every rank"),
            HasSubstr("it is micro-batch 1 of replica 1 (sample 1013)")));
  EXPECT_EQ(run.cluster->engine(0).updates(), 1);
}

TEST(StepRunnerTest, ABadStepThatDoesNotComeAgainIsAMachinesAndCounts) {
  WatchedRun sound(kUndisturbed);
  const std::vector<float> expected = StatesAfter(sound, 3);
  WatchedRun run(Disturb(0, kNan, [](int pass) { return pass == kPassesOfStep; }));
  run.Step(1);
  const StepRunner::Outcome outcome = run.Step(2);
  EXPECT_FALSE(outcome.report.skipped);
  EXPECT_THAT(
      outcome.finding,
      AllOf(HasSubstr("step 2: a non-finite value, first in unit 2 (layer 1), micro-batch 0"),
            HasSubstr("a machine is at fault, not the data"), HasSubstr("rank 0 (host "),
            HasSubstr("the second run counts")));
  run.Step(3);
  EXPECT_EQ(run.cluster->StateBits(), expected) << "the fault left no trace";
}

TEST(StepRunnerTest, ASpikeIsAttributedAndChangesNoNumber) {
  // Step 10: its passes come once, then again from the same state, then to be applied.
  const auto in_step_10 = [](int pass) {
    return pass >= 9 * kPassesOfStep && pass < 12 * kPassesOfStep && pass % kPassesOfStep == 0;
  };
  WatchedRun run(Disturb(2, 300, in_step_10), /*spike_factor=*/3);
  for (int64_t step = 1; step <= 9; ++step) EXPECT_EQ(run.Step(step).finding, "") << step;
  const StepRunner::Outcome outcome = run.Step(10);
  EXPECT_TRUE(outcome.spike);
  EXPECT_FALSE(outcome.report.skipped) << "it is looked into, then applied";
  EXPECT_THAT(outcome.finding,
              AllOf(HasSubstr("step 10: gradient norm "), HasSubstr("times the median"),
                    HasSubstr("the same to the bit on every rank"),
                    HasSubstr(" % of the squared norm is of unit 1 (layer 0)"),
                    HasSubstr("the largest loss, "), HasSubstr(" (samples 10")));
  EXPECT_EQ(run.cluster->engine(0).updates(), 10);
}

TEST(StepRunnerTest, WatchingForSpikesChangesNoBit) {
  WatchedRun unwatched(kUndisturbed);
  WatchedRun watched(kUndisturbed, /*spike_factor=*/1.0000001);
  EXPECT_EQ(StatesAfter(watched, 16), StatesAfter(unwatched, 16));
}

// A spike that a machine made is gone in the second run.
TEST(StepRunnerTest, ASpikeOfAMachineDoesNotCount) {
  WatchedRun sound(kUndisturbed);
  const std::vector<float> expected = StatesAfter(sound, 10);
  WatchedRun run(Disturb(0, 300, [](int pass) { return pass == 9 * kPassesOfStep; }), 3);
  for (int64_t step = 1; step <= 9; ++step) run.Step(step);
  const StepRunner::Outcome outcome = run.Step(10);
  EXPECT_FALSE(outcome.spike);
  EXPECT_THAT(outcome.finding, HasSubstr("a machine is at fault"));
  EXPECT_EQ(run.cluster->StateBits(), expected);
}

// --- DescribeReplay, of findings made by hand ---

Replay HandMade(const Plan& plan) {
  Replay replay{plan, {}, {}, {}, 0.5, [](int64_t sample) { return 100 + sample; }};
  replay.first.step = 12;
  replay.first.spike = replay.second.spike = true;
  replay.first.gradient_norm = replay.second.gradient_norm = 20;
  replay.first.loss = replay.second.loss = 2.5;
  const size_t num_units = MakeUnits(plan.model).size();
  for (int rank = 0; rank < plan.layout.num_ranks(); ++rank) {
    RankFindings findings;
    findings.host = "host-" + std::to_string(rank);
    findings.unit_squares.assign(num_units, 1);
    findings.losses.resize(static_cast<size_t>(plan.layout.num_micro_batches()));
    replay.ranks.push_back(findings);
  }
  return replay;
}

Plan PlanOfTwoByTwo() {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.layout.stages = job.layout.replicas = 2;
  auto plan = PlanOf(job);
  CHECK(plan.ok());
  return *std::move(plan);
}

TEST(DescribeReplayTest, ASpikeNamesUnitMicroBatchAndSamples) {
  const Plan plan = PlanOfTwoByTwo();
  Replay replay = HandMade(plan);
  replay.ranks[0].unit_squares[1] = 60;  // both shards count: 60 + 24 + 2 of 4 * 7 - 2 + 84
  replay.ranks[2].unit_squares[1] = 24;
  replay.ranks[3].losses = {{4, 2}, {9, 1}};  // replica 1: the second has the larger mean
  replay.ranks[1].losses = {{8, 2}, {8, 2}};
  EXPECT_EQ(DescribeReplay(replay),
            "step 12: gradient norm 20, 40.0 times the median of the steps before. Run again from "
            "the same state, it is the same to the bit on every rank: the data or the model, not a "
            "machine; 78 % of the squared norm is of unit 1 (layer 0); the largest loss, 9 a token "
            "(mean 2.5), is of micro-batch 1 of replica 1 (sample 106)");
  EXPECT_FALSE(IsMachineFault(replay));
}

TEST(DescribeReplayTest, AMachineIsNamedByRankAndHost) {
  const Plan plan = PlanOfTwoByTwo();
  Replay replay = HandMade(plan);
  replay.second.spike = false;
  replay.second.gradient_norm = 0.25;
  replay.ranks[1].differs = replay.ranks[3].differs = true;
  EXPECT_TRUE(IsMachineFault(replay));
  EXPECT_EQ(DescribeReplay(replay),
            "step 12: gradient norm 20, 40.0 times the median of the steps before. Run again from "
            "the same state, it came out otherwise: loss 2.5, gradient norm 0.25. So a machine is "
            "at fault, not the data: other numbers came from rank 1 (host host-1), rank 3 (host "
            "host-3); the second run counts");
}

TEST(DescribeReplayTest, AnOverflowOfASumHasNoMicroBatch) {
  const Plan plan = PlanOfTwoByTwo();
  Replay replay = HandMade(plan);
  replay.first.spike = replay.second.spike = false;
  replay.first.non_finite = replay.second.non_finite = {true, 2, 5, -1};
  replay.ranks[0].unit_squares[5] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(DescribeReplay(replay),
            "step 12: a non-finite value, first in unit 5 (table of embedding and head) in the sum "
            "of its gradients on rank 2 (host host-2). Run again from the same state, it is the "
            "same to the bit on every rank: the data or the model, not a machine");
}

TEST(SameFindingsTest, EveryBitCountsButWhichNan) {
  StepReport a;
  a.unit_squares = {1, 2};
  a.losses = {{1, 1}};
  EXPECT_TRUE(SameFindings(a, a));
  StepReport b = a;
  b.unit_squares[1] = std::nextafter(2.0, 3.0);
  EXPECT_FALSE(SameFindings(a, b));
  b = a;
  b.losses[0].valid_tokens = 2;
  EXPECT_FALSE(SameFindings(a, b));
  a.unit_squares[0] = std::numeric_limits<double>::quiet_NaN();
  b = a;
  b.unit_squares[0] = -a.unit_squares[0];
  EXPECT_TRUE(SameFindings(a, b));
}

}  // namespace
}  // namespace esteira
