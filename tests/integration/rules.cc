#include "tests/integration/rules.h"

#include <algorithm>
#include <cmath>

#include "tests/worker/engine/naive_training.h"
#include "worker/kernels/kernels.h"

namespace esteira {
namespace {

void ExpectSameState(const WholeState& actual, const NaiveTraining& naive,
                     const std::vector<std::vector<double>>& initial) {
  for (size_t u = 0; u < actual.master.size(); ++u) {
    SCOPED_TRACE(testing::Message() << "unit " << u);
    EXPECT_LT(RelativeDistance(actual.m[u], naive.m()[u]), 1e-4);
    EXPECT_LT(RelativeDistance(actual.v[u], naive.v()[u]), 2e-4);
    // Of the way that the weights have gone, not of the weights.
    std::vector<double> way = actual.master[u], expected = naive.master()[u];
    for (size_t i = 0; i < way.size(); ++i) {
      way[i] -= initial[u][i];
      expected[i] -= initial[u][i];
    }
    EXPECT_LT(RelativeDistance(way, expected), 1e-2);
  }
}

}  // namespace

JobSpec In(JobSpec job, const LayoutCase& layout) {
  job.layout.stages = layout.stages;
  job.layout.replicas = layout.replicas;
  job.layout.zero = layout.zero;
  job.layout.schedule = layout.schedule;
  job.layout.reduce_every = layout.reduce_every;
  job.layout.recompute = layout.recompute;
  return job;
}

SampleReader SamplesWhere(const JobSpec& job, Counts counts) {
  const int64_t vocab = job.model.vocab_size;
  const int64_t sequence = job.sequence_length;
  return [toy = ToySamples(job), counts = std::move(counts), vocab, sequence](
             int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets) {
    absl::Status status = toy(first, count, inputs, targets);
    for (int64_t at = 0; at < count * sequence; ++at) {
      const auto i = static_cast<size_t>(at);
      targets[i] = counts(first + at / sequence, at % sequence)
                       ? static_cast<int32_t>((inputs[i] * 5 + 3) % vocab)
                       : kIgnoredTarget;
    }
    return status;
  };
}

WholeState StateOf(LocalCluster& cluster) {
  const std::vector<UnitSpec> units = MakeUnits(cluster.plan().model);
  WholeState whole;
  for (auto* buffer : {&whole.master, &whole.m, &whole.v}) {
    for (const UnitSpec& unit : units) {
      buffer->emplace_back(unit.owner < 0 ? static_cast<size_t>(unit.flat_elements) : 0);
    }
  }
  for (int rank = 0; rank < cluster.num_ranks(); ++rank) {
    for (const UnitState& state : cluster.engine(rank).States()) {
      const auto u = static_cast<size_t>(state.unit);
      std::copy(state.master.begin(), state.master.end(), whole.master[u].begin() + state.begin);
      std::copy(state.m.begin(), state.m.end(), whole.m[u].begin() + state.begin);
      std::copy(state.v.begin(), state.v.end(), whole.v[u].begin() + state.begin);
    }
  }
  return whole;
}

double RelativeDistance(const std::vector<double>& actual, const std::vector<double>& expected) {
  double distance = 0, length = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    distance += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    length += expected[i] * expected[i];
  }
  return distance == 0 ? 0 : std::sqrt(distance / length);
}

void ExpectTrainsAsNaive(const JobSpec& job, const SampleReader& samples, int64_t steps) {
  SCOPED_TRACE(LayoutText(job.layout));
  const auto cluster = LocalCluster::Make(job, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  NaiveTraining naive(job);
  const auto initial = naive.master();
  for (int64_t step = 1; step <= steps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const auto actual = (*cluster)->Step(step, samples);
    ASSERT_TRUE(actual.ok()) << actual.status();
    const StepReport& report = actual->report;
    const NaiveTraining::StepResult expected = naive.Step(step, samples);
    EXPECT_EQ(report.valid_tokens, expected.valid_tokens);
    EXPECT_EQ(report.skipped, expected.skipped);
    EXPECT_NEAR(report.loss, expected.loss, 1e-5 * expected.loss);
    EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
    EXPECT_NEAR(report.learning_rate, expected.learning_rate, 1e-9 * expected.learning_rate);
    ExpectSameState(StateOf(**cluster), naive, initial);
    if (testing::Test::HasFailure()) return;
  }
}

void RulesTest::ExpectInEach(const std::vector<LayoutCase>& layouts, const SampleReader& samples,
                             int64_t steps) {
  for (const LayoutCase& layout : layouts) {
    ExpectTrainsAsNaive(In(job_, layout), samples, steps);
    if (HasFailure()) return;
  }
}

JobSpec RulesTest::Job() {
  JobSpec job = ToyJob(std::get<0>(GetParam()));
  job.numerics = std::get<1>(GetParam());
  job.model.num_layers = 4;
  return job;
}

}  // namespace esteira
