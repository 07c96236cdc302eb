// Measured against simulated: the real engine on synthetic units, eight ranks as threads. Under its
// own label (timing), since a machine that is busy with something else fails it.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/machine.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/model/paced_units.h"

namespace esteira {
namespace {

constexpr int kStages = 8;
constexpr double kPassSeconds = 0.005;
constexpr int kSteps = 7;
constexpr double kTolerance = 0.05;

JobSpec SyntheticJob(const std::string& schedule, int64_t micro_batches) {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.model.num_layers = kStages;
  job.global_batch_size = micro_batches;
  job.layout.stages = kStages;
  job.layout.schedule = schedule;
  job.layout.micro_batch_size = 1;
  return job;
}

// What a synthetic worker does, in seconds; the rest takes no time.
double PassSeconds(const Plan& plan, const Instruction& i) {
  if (QueueOf(i.op) != Queue::kCompute || i.op == Op::kClear || i.op == Op::kStep) return 0;
  const bool block = i.unit > 0 && i.unit < NumComputeUnits(plan.model) - 1;
  if (!block) return 0;
  return i.op == Op::kBackward ? 2 * kPassSeconds : kPassSeconds;
}

double Simulated(const Plan& plan) {
  const absl::StatusOr<Execution> execution = RunMachine(
      plan, plan.train, [&](const Program&, const Instruction& i) { return PassSeconds(plan, i); });
  EXPECT_TRUE(execution.ok()) << execution.status();
  return execution.ok() ? execution->makespan : 0;
}

// The median over some steps of the slowest rank's step.
double Measured(const JobSpec& job, const Plan& plan) {
  LocalCluster::Options options;
  options.check_finite_each_op = false;
  options.units = [](int) { return SyntheticUnits({.pass_seconds = kPassSeconds}, MakePacer()); };
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Make(job, plan, options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return 0;
  std::vector<double> seconds(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<StepReport> reports(kStages);
    const absl::Status status = (*cluster)->OnEachRank([&](int rank) -> absl::Status {
      absl::StatusOr<StepReport> report =
          (*cluster)->engine(rank).Step(step + 1, ToySamples(job), /*hash=*/false);
      if (report.ok()) reports[static_cast<size_t>(rank)] = *report;
      return report.status();
    });
    EXPECT_TRUE(status.ok()) << status;
    for (const StepReport& report : reports) {
      seconds[static_cast<size_t>(step)] =
          std::max(seconds[static_cast<size_t>(step)], report.step_seconds);
    }
    EXPECT_EQ(reports[0].loss, 0);
    EXPECT_GT(reports[0].valid_tokens, 0);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[kSteps / 2];
}

struct Case {
  std::string schedule;
  int64_t micro_batches;
};

class SyntheticTimingTest : public testing::TestWithParam<Case> {};

TEST_P(SyntheticTimingTest, AStepTakesWhatTheSimulatorSays) {
  const JobSpec job = SyntheticJob(GetParam().schedule, GetParam().micro_batches);
  const absl::StatusOr<Plan> plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const double simulated = Simulated(*plan);
  const double measured = Measured(job, *plan);
  RecordProperty("simulated", absl::StrCat(simulated));
  RecordProperty("measured", absl::StrCat(measured));
  std::cout << "simulated " << simulated << " s, measured " << measured << " s, ratio "
            << measured / simulated << "\n";
  EXPECT_GT(measured / simulated, 1 - kTolerance);
  EXPECT_LT(measured / simulated, 1 + kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Schedules, SyntheticTimingTest,
                         testing::Values(Case{"gpipe", 8}, Case{"1f1b", 8}, Case{"1f1b", 16},
                                         Case{"1f1b", 3}),
                         [](const testing::TestParamInfo<Case>& test) {
                           return absl::StrCat(test.param.schedule, "_", test.param.micro_batches);
                         });

}  // namespace
}  // namespace esteira
