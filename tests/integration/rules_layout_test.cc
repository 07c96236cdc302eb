// What a layout must not change: tied tables, odd sizes, short batches, initial weights, recompute.

#include <algorithm>
#include <bit>

#include "common/plan/shard_map.h"
#include "tests/integration/rules.h"
#include "tests/worker/engine/naive_training.h"
#include "worker/model/unit_compute.h"

namespace esteira {
namespace {

// What a checkpoint would hold. The head end of a tied table has its owner's masters.
StateSource SourceOf(const JobSpec& job, const WholeState& state) {
  return [units = MakeUnits(job.model), &state](int unit, int buffer, int64_t begin,
                                                std::span<float> values) {
    if (values.empty()) return absl::OkStatus();  // nothing but padding, behind the end
    const int owner = units[static_cast<size_t>(unit)].owner;
    const auto& buffers = buffer == 0 ? state.master : buffer == 1 ? state.m : state.v;
    const std::vector<double>& from = buffers[static_cast<size_t>(owner < 0 ? unit : owner)];
    std::transform(from.begin() + begin, from.begin() + begin + std::ssize(values), values.begin(),
                   [](double value) { return static_cast<float>(value); });
    return absl::OkStatus();
  };
}

// Both ends of the table bring a part of its gradient, it counts once in the norm, and after each
// update both ends hold the same weights: a loss of the next batch sees both.
TEST_P(RulesTest, ATiedTableOnTwoStagesIsOneParameter) {
  job_.model.tie_embeddings = true;
  ExpectInEach({{.stages = 2, .replicas = 2, .zero = 1},
                {.stages = 2, .replicas = 2, .zero = 0},
                {.stages = 2, .replicas = 2, .zero = 2},
                {.stages = 2, .replicas = 2, .zero = 3},
                {.stages = 4, .replicas = 3, .zero = 1, .reduce_every = 1},
                {.stages = 1, .replicas = 2, .zero = 1}},
               ToySamples(job_), 4);
}

TEST_P(RulesTest, AnUntiedTableIsTwo) {
  job_.model.tie_embeddings = false;
  ExpectInEach({{}, {.stages = 2, .replicas = 2, .zero = 1}}, ToySamples(job_));
}

// No parameter divides by 3, 5 or 7; some replicas hold nothing but padding of the small ones.
TEST_P(RulesTest, ParametersNeedNotDivideByReplicas) {
  job_.model.hidden_size = 20;
  job_.model.num_heads = 2;
  job_.model.num_kv_heads = job_.model.architecture == Architecture::kLlama ? 1 : 2;
  job_.model.intermediate_size = 50;
  job_.model.vocab_size = 37;
  job_.global_batch_size = 11;
  for (int zero = 0; zero <= 3; ++zero) {
    ExpectInEach({{.replicas = 3, .zero = zero},
                  {.replicas = 5, .zero = zero, .reduce_every = 1},
                  {.stages = 2, .replicas = 7, .zero = zero}},
                 ToySamples(job_), 2);
  }
}

// A layer that is lost or run twice is another model; so is one that is in two stages.
TEST_P(RulesTest, LayersNeedNotDivideByStages) {
  for (int64_t layers : {1, 5, 7}) {
    job_.model.num_layers = layers;
    std::vector<LayoutCase> layouts = {{.stages = 2}, {.stages = 3, .schedule = "zb_h1"}};
    if (layers > 1) layouts.push_back({.stages = 4, .replicas = 2, .zero = 3});
    ExpectInEach(layouts, ToySamples(job_), 2);
  }
}

// Batches that neither replicas nor micro-batches divide: short micro-batches, empty ones, whole
// replicas without a sample, and fewer micro-batches than stages.
TEST_P(RulesTest, AnIncompleteLastBatchCountsAsManySamplesAsItHas) {
  const auto all = [](int64_t, int64_t) { return true; };
  for (int64_t batch : {1, 5, 9}) {
    job_.global_batch_size = batch;
    for (int micro_batch_size : {1, 4}) {
      job_.layout.micro_batch_size = micro_batch_size;
      ExpectInEach({{},
                    {.stages = 4, .schedule = "gpipe"},
                    {.replicas = 2, .zero = 2, .reduce_every = 1},
                    {.stages = 2, .replicas = 4, .zero = 3}},
                   SamplesWhere(job_, all), 2);
    }
  }
}

// Each element by its name and index alone, in every layout, and so the first loss to the bit.
TEST_P(RulesTest, InitialWeightsDoNotDependOnTheLayout) {
  std::vector<std::vector<double>> expected;
  for (const UnitSpec& unit : MakeUnits(job_.model)) {
    std::vector<float> weights(unit.owner < 0 ? static_cast<size_t>(unit.flat_elements) : 0);
    InitialWeights(unit, job_.seed, {0, static_cast<int64_t>(weights.size())}, weights);
    expected.emplace_back(weights.begin(), weights.end());
  }
  uint64_t loss = 0;
  for (const LayoutCase& layout : {LayoutCase{}, LayoutCase{.stages = 2, .replicas = 3, .zero = 3},
                                   LayoutCase{.stages = 4, .zero = 1, .schedule = "zb_h1"},
                                   LayoutCase{.replicas = 5, .zero = 2}}) {
    const JobSpec job = In(job_, layout);
    SCOPED_TRACE(LayoutText(job.layout));
    const auto cluster = LocalCluster::Make(job, {});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    EXPECT_EQ(StateOf(**cluster).master, expected);
    const auto evaluated = (*cluster)->Evaluate(2, ToySamples(job));
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    if (loss == 0) loss = std::bit_cast<uint64_t>(*evaluated);
    EXPECT_EQ(std::bit_cast<uint64_t>(*evaluated), loss);
  }
}

TEST_P(RulesTest, WhatIsRecomputedIsWhatWasComputed) {
  ExpectInEach({{.recompute = "full"},
                {.stages = 2, .replicas = 2, .zero = 3, .recompute = "full"},
                {.stages = 3, .schedule = "zb_h1", .recompute = "full"}},
               ToySamples(job_));
}

// Each sample and layer has its own mask, the same again when it is recomputed.
TEST_P(RulesTest, WhatIsRecomputedUnderDropoutIsWhatWasComputed) {
  job_.dropout = 0.25;
  ExpectInEach({{},
                {.recompute = "full"},
                {.stages = 2, .replicas = 2, .zero = 3, .recompute = "full"},
                {.stages = 3, .replicas = 3, .schedule = "zb_h1", .recompute = "full"}},
               ToySamples(job_));
}

// AdamW of the paper: decay apart from the gradient, on matrices alone.
TEST_P(RulesTest, DecayIsDecoupledAndOnMatricesAlone) {
  job_.adamw.weight_decay = 20;  // against steps of the learning rate
  ExpectInEach({{}, {.stages = 2, .replicas = 3, .zero = 2}}, ToySamples(job_), 4);
}

// A batch of ignored targets lies before the stop, so updates and steps are not the same number:
// the learning rate follows the steps, the bias correction the updates.
TEST_P(RulesTest, AfterAResumeRatesAndMomentsGoOn) {
  const SampleReader samples =
      SamplesWhere(job_, [](int64_t sample, int64_t) { return sample / 7 != 1; });
  const JobSpec before = In(job_, {.stages = 2, .replicas = 2, .zero = 3});
  const auto first = LocalCluster::Make(before, {});
  ASSERT_TRUE(first.ok()) << first.status();
  NaiveTraining naive(job_);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*first)->Step(step, samples).ok());
    naive.Step(step, samples);
  }
  const WholeState saved = StateOf(**first);
  const JobSpec after = In(job_, {.stages = 3, .zero = 1});
  const auto second = LocalCluster::Make(after, {});
  ASSERT_TRUE(second.ok()) << second.status();
  for (int rank = 0; rank < (*second)->num_ranks(); ++rank) {
    const absl::Status restored =
        (*second)->engine(rank).Restore((*first)->engine(0).updates(), SourceOf(job_, saved));
    ASSERT_TRUE(restored.ok()) << restored;
  }
  for (int64_t step = 4; step <= 6; ++step) {
    const auto unbroken = (*first)->Step(step, samples);
    const auto resumed = (*second)->Step(step, samples);
    ASSERT_TRUE(unbroken.ok() && resumed.ok()) << unbroken.status() << resumed.status();
    const NaiveTraining::StepResult expected = naive.Step(step, samples);
    EXPECT_NEAR(resumed->report.learning_rate, expected.learning_rate, 1e-12);
    EXPECT_NEAR(resumed->report.loss, expected.loss, 1e-5 * expected.loss);
    if (job_.numerics == Numerics::kExact) {
      EXPECT_EQ(resumed->report.loss, unbroken->report.loss);
      EXPECT_EQ(resumed->parameter_hash, unbroken->parameter_hash);
    }
  }
  const WholeState end = StateOf(**second);
  for (size_t u = 0; u < end.m.size(); ++u) {
    EXPECT_LT(RelativeDistance(end.master[u], naive.master()[u]), 1e-4) << u;
    EXPECT_LT(RelativeDistance(end.m[u], naive.m()[u]), 1e-3) << u;
    EXPECT_LT(RelativeDistance(end.v[u], naive.v()[u]), 1e-3) << u;
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, RulesTest,
                         ::testing::Combine(::testing::Values(Architecture::kGpt2,
                                                              Architecture::kLlama),
                                            ::testing::Values(Numerics::kFast, Numerics::kExact)),
                         [](const auto& test) {
                           return std::string(ArchitectureName(std::get<0>(test.param))) + "_" +
                                  NumericsName(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace esteira
