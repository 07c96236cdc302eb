// The rules of training (README.md of this folder): engines in any layout against NaiveTraining,
// which knows none, so that a factor that is wrong in every layout is seen too. Ranks are threads.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "tests/worker/engine/local_cluster.h"

namespace esteira {

// A layout in short; what is not named is the simplest there is.
struct LayoutCase {
  int stages = 1;
  int replicas = 1;
  int zero = 0;
  const char* schedule = "1f1b";
  int reduce_every = kAll;
  const char* recompute = "none";
};
JobSpec In(JobSpec job, const LayoutCase& layout);

// Whether the target at a position of a sample counts.
using Counts = std::function<bool(int64_t sample, int64_t position)>;
// ToySamples, in which these targets count.
SampleReader SamplesWhere(const JobSpec& job, Counts counts);

// One buffer of the optimizer's state by unit, put together from all ranks. `m` after one step from
// the beginning is 1 - beta1 times the gradient that reached the optimizer.
struct WholeState {
  std::vector<std::vector<double>> master, m, v;
};
WholeState StateOf(LocalCluster& cluster);

// The Euclidean distance of `actual` from `expected`, relative to the length of `expected`.
double RelativeDistance(const std::vector<double>& actual, const std::vector<double>& expected);

// Trains `steps` steps in the job's layout and as NaiveTraining does: in each, what is reported and
// what the optimizer holds of each unit is the same, but for the rounding of fp32.
void ExpectTrainsAsNaive(const JobSpec& job, const SampleReader& samples, int64_t steps = 3);

class RulesTest : public ::testing::TestWithParam<std::tuple<Architecture, Numerics>> {
 protected:
  // Four layers; seven samples a step, in micro-batches of two: the last one is short.
  JobSpec job_ = Job();
  // As ExpectTrainsAsNaive, in each layout.
  void ExpectInEach(const std::vector<LayoutCase>& layouts, const SampleReader& samples,
                    int64_t steps = 3);

 private:
  static JobSpec Job();
};

}  // namespace esteira
