// How the passes of a unit may be ordered, split, repeated and cut, without a bit of difference.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/model/backends.h"
#include "tests/worker/model/fixture.h"
#include "tests/worker/model/small_model.h"

namespace esteira {
namespace {

using Mode = SmallModel::Mode;

ModelSpec Model(Architecture architecture, bool tied) {
  ModelSpec model;
  model.architecture = architecture;
  model.num_layers = 1;
  model.hidden_size = 12;
  model.num_heads = 6;
  model.num_kv_heads = architecture == Architecture::kGpt2 ? 6 : 3;
  model.intermediate_size = 20;
  model.vocab_size = 29;
  model.max_sequence_length = 300;
  model.tie_embeddings = tied;
  return model;
}

using Parameters = std::tuple<Architecture, bool, Precision>;

class UnitComputeTest : public testing::TestWithParam<Parameters> {
 protected:
  UnitComputeTest()
      : model_(Model(std::get<0>(GetParam()), std::get<1>(GetParam())), std::get<2>(GetParam()),
               MakeTestKernels(BackendKind::kCpu)) {
    model_.SetParameters(FixtureWeight);
  }

  TestBatch Batch(int64_t batch, int64_t sequence) const {
    return MakeTestBatch(model_.model(), batch, sequence);
  }
  std::vector<float> Gradients(const TestBatch& batch, int64_t planned_batch) {
    model_.ClearGradients();
    InFlight flight = model_.Launch(batch, planned_batch);
    model_.ForwardAll(flight);
    model_.BackwardAll(flight);
    return model_.AllGradients();
  }

  SmallModel model_;
};

TEST_P(UnitComputeTest, WeightPassesMayComeMuchLater) {
  const TestBatch first = Batch(2, 7);
  TestBatch second = Batch(1, 7);
  second.tokens.back() = 3;
  const auto fused = [&] {
    model_.ClearGradients();
    for (const TestBatch& batch : {first, second}) {
      InFlight flight = model_.Launch(batch, 2);
      model_.ForwardAll(flight);
      model_.BackwardAll(flight);
    }
    return model_.AllGradients();
  }();

  model_.ClearGradients();
  InFlight flights[] = {model_.Launch(first, 2), model_.Launch(second, 2)};
  for (InFlight& flight : flights) {
    model_.ForwardAll(flight);
    for (int unit = model_.num_compute_units() - 1; unit >= 0; --unit) {
      model_.BackwardInput(flight, unit);
    }
  }
  for (InFlight& flight : flights) {
    for (int unit = 0; unit < model_.num_compute_units(); ++unit) {
      model_.BackwardWeight(flight, unit);
    }
  }
  EXPECT_EQ(model_.AllGradients(), fused);
  double sum = 0;
  for (float gradient : fused) sum += std::abs(gradient);
  EXPECT_GT(sum, 1);  // also: no NaN from the scribble
}

// Two micro-batches, the first of which begins the sums in windows full of NaN.
TEST_P(UnitComputeTest, BegunSumsHaveTheBitsOfSumsFromZero) {
  const TestBatch batches[] = {Batch(2, 7), Batch(1, 7)};
  const auto gradients = [&](bool from_zero) {
    from_zero ? model_.ClearGradients() : model_.ScribbleGradients();
    for (const TestBatch& batch : batches) {
      InFlight flight = model_.Launch(batch, 2);
      model_.ForwardAll(flight);
      model_.BackwardAll(flight);
    }
    return model_.ParameterGradients();
  };
  const std::vector<float> expected = gradients(true);
  const std::vector<float> begun = gradients(false);
  ASSERT_EQ(begun.size(), expected.size());
  EXPECT_EQ(std::memcmp(begun.data(), expected.data(), begun.size() * sizeof(float)), 0);
}

// 257 positions: one row of logits more than the head forms at once.
TEST_P(UnitComputeTest, RecomputeGivesTheSameBits) {
  for (int64_t sequence : {1, 7, 257}) {
    const TestBatch batch = Batch(2, sequence);
    model_.ClearLoss();
    InFlight kept = model_.Launch(batch, 2);
    model_.ForwardAll(kept);
    const LossSums loss = *model_.loss();

    model_.ClearLoss();
    InFlight again = model_.Launch(batch, 2);
    model_.ForwardAll(again, Mode::kDiscard);
    for (int unit = 0; unit < model_.num_compute_units(); ++unit) {
      const auto index = static_cast<size_t>(unit);
      EXPECT_TRUE(again.saved[index].IntactFrom(0)) << unit;
      EXPECT_EQ(again.y[index].Copy(), kept.y[index].Copy()) << unit;
      model_.Forward(again, unit, Mode::kRecompute);
      EXPECT_EQ(again.saved[index].Copy(), kept.saved[index].Copy()) << unit;
    }
    EXPECT_EQ(model_.loss()->loss, loss.loss);
    EXPECT_EQ(model_.loss()->valid_tokens, loss.valid_tokens);
    EXPECT_TRUE(std::isfinite(loss.loss));
    EXPECT_GT(loss.valid_tokens, 0);
  }
}

TEST_P(UnitComputeTest, EvaluationGivesTheLossOfTraining) {
  InFlight flight = model_.Launch(Batch(2, 7), 2);
  model_.ForwardAll(flight);
  const LossSums trained = *model_.loss();
  model_.ClearLoss();
  model_.ForwardAll(flight, Mode::kEvaluate);
  EXPECT_EQ(model_.loss()->loss, trained.loss);
  EXPECT_EQ(model_.loss()->valid_tokens, trained.valid_tokens);
}

TEST_P(UnitComputeTest, LossOfASequenceDoesNotDependOnItsMicroBatch) {
  const TestBatch batch = Batch(3, 5);
  double sum = 0;
  int64_t valid_tokens = 0;
  for (int64_t i = 0; i < 3; ++i) {
    model_.ClearLoss();
    InFlight flight = model_.Launch(SequenceOf(batch, i), 3);
    model_.ForwardAll(flight);
    sum += model_.loss()->loss;
    valid_tokens += model_.loss()->valid_tokens;
  }
  model_.ClearLoss();
  InFlight flight = model_.Launch(batch, 3);
  model_.ForwardAll(flight);
  EXPECT_NEAR(model_.loss()->loss, sum, 1e-5 * sum);
  EXPECT_EQ(model_.loss()->valid_tokens, valid_tokens);
}

TEST_P(UnitComputeTest, ShortMicroBatchFitsWhereAFullOneWasPlanned) {
  const TestBatch batch = SequenceOf(Batch(3, 5), 1);
  const std::vector<float> gradients = Gradients(batch, 1);
  EXPECT_EQ(Gradients(batch, 3), gradients);
}

TEST_P(UnitComputeTest, EmptyMicroBatchTouchesNothing) {
  InFlight flight = model_.Launch(Batch(0, 7), 2);
  for (Mode mode : {Mode::kTrain, Mode::kDiscard, Mode::kRecompute, Mode::kEvaluate}) {
    model_.ForwardAll(flight, mode);
  }
  model_.BackwardAll(flight);
  EXPECT_EQ(model_.loss()->loss, 0);
  EXPECT_EQ(model_.loss()->valid_tokens, 0);
  for (float gradient : model_.AllGradients()) ASSERT_EQ(gradient, 0);
  for (const GuardedBuffer& saved : flight.saved) EXPECT_TRUE(saved.IntactFrom(0));
}

TEST_P(UnitComputeTest, IgnoredTargetsGiveNoLossAndNoGradient) {
  TestBatch batch = Batch(2, 7);
  std::fill(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
  for (float gradient : Gradients(batch, 2)) ASSERT_EQ(gradient, 0);
  EXPECT_EQ(model_.loss()->loss, 0);
  EXPECT_EQ(model_.loss()->valid_tokens, 0);
}

TEST_P(UnitComputeTest, GradientsAccumulate) {
  const TestBatch batch = Batch(2, 3);
  const std::vector<float> once = Gradients(batch, 2);
  InFlight flight = model_.Launch(batch, 2);
  model_.ForwardAll(flight);
  model_.BackwardAll(flight);
  std::vector<float> twice;
  for (float gradient : once) twice.push_back(2 * gradient);
  EXPECT_LT(RelativeError(model_.AllGradients(), twice), 1e-6);
}

// Names of the slices whose last element is still as Scribble left it.
std::set<std::string> Unwritten(const BufferLayout& layout, const GuardedBuffer& buffer) {
  std::set<std::string> names;
  for (const TensorSlice& slice : layout.slices) {
    const int64_t end = slice.offset_bytes + slice.elements * BytesOf(slice.type);
    if (buffer.data()[end - 1] == std::byte{0xff}) names.insert(slice.name);
  }
  return names;
}

// Every tensor of the tables is needed: some pass writes its last element.
TEST_P(UnitComputeTest, TablesHoldNoMoreThanIsUsed) {
  InFlight flight = model_.Launch(Batch(2, 7), 2);
  const int num_units = model_.num_compute_units();
  std::vector<std::set<std::string>> unused(static_cast<size_t>(num_units));
  const auto see = [&](int unit) {
    const auto unwritten = Unwritten(model_.Workspace(unit, 2, 7), model_.workspace());
    std::erase_if(unused[static_cast<size_t>(unit)],
                  [&](const std::string& name) { return !unwritten.contains(name); });
  };
  for (int unit = 0; unit < num_units; ++unit) {
    for (const TensorSlice& slice : model_.Workspace(unit, 2, 7).slices) {
      unused[static_cast<size_t>(unit)].insert(slice.name);
    }
    for (Mode mode : {Mode::kTrain, Mode::kDiscard, Mode::kRecompute}) {
      model_.Forward(flight, unit, mode);
      see(unit);
    }
  }
  for (int unit = num_units - 1; unit >= 0; --unit) {
    model_.BackwardInput(flight, unit);
    see(unit);
    const auto index = static_cast<size_t>(unit);
    // How much scratch attention takes is the kernels' affair.
    unused[index].erase("attention");
    EXPECT_EQ(unused[index], std::set<std::string>()) << unit;
    EXPECT_EQ(Unwritten(model_.Saved(unit, 2, 7), flight.saved[index]), std::set<std::string>())
        << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, UnitComputeTest,
    testing::Combine(testing::Values(Architecture::kGpt2, Architecture::kLlama), testing::Bool(),
                     testing::Values(Precision::kFp32, Precision::kBf16)),
    [](const testing::TestParamInfo<Parameters>& instance) {
      return std::string(ArchitectureName(std::get<0>(instance.param))) +
             (std::get<1>(instance.param) ? "_tied_" : "_untied_") +
             PrecisionName(std::get<2>(instance.param));
    });

}  // namespace
}  // namespace esteira
