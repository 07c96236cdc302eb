#include "worker/model/paced_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/plan/sizes.h"
#include "tests/fakes/fake_clock.h"

namespace esteira {
namespace {

ModelSpec Model() {
  ModelSpec model;
  model.architecture = Architecture::kGpt2;
  model.num_layers = 1;
  model.hidden_size = 16;
  model.num_heads = 4;
  model.num_kv_heads = 4;
  model.intermediate_size = 64;
  model.vocab_size = 32;
  model.max_sequence_length = 8;
  return model;
}

// Runs passes of one unit on a clock that only the pacer moves.
class PacedUnitsTest : public testing::Test {
 protected:
  UnitFactory Synthetic(const SyntheticPace& pace) { return SyntheticUnits(pace, pacer_); }
  std::unique_ptr<UnitCompute> Make(const UnitFactory& factory, int unit) {
    unit_ = MakeUnits(model_)[static_cast<size_t>(unit)];
    return factory(model_, unit_, Precision::kFp32);
  }

  Tensor Rows(std::vector<float>& values) {
    return {reinterpret_cast<std::byte*>(values.data()), ElementType::kFp32, tokens_,
            model_.hidden_size};
  }
  UnitArguments Arguments() {
    UnitArguments arguments;
    arguments.batch = batch_;
    arguments.sequence = sequence_;
    arguments.x = Rows(x_);
    arguments.y = Rows(y_);
    arguments.dy = Rows(dy_);
    arguments.dx = Rows(dx_);
    arguments.targets = {reinterpret_cast<std::byte*>(targets_.data()), ElementType::kInt32,
                         tokens_, 1};
    arguments.loss = &loss_;
    return arguments;
  }
  // How long `pass` takes.
  template <typename Issue>
  absl::Duration Time(const Issue& issue) {
    clock_.Advance(absl::Seconds(1));  // a pause
    const absl::Time began = clock_.Now();
    issue();
    EXPECT_TRUE(stream_->Synchronize().ok());
    return clock_.Now() - began;
  }

  const ModelSpec model_ = Model();
  const int64_t batch_ = 2, sequence_ = 8, tokens_ = 16;
  FakeClock clock_;
  std::shared_ptr<Pacer> pacer_ =
      std::make_shared<Pacer>(clock_, [this](absl::Time until) { clock_.Set(until); });
  UnitSpec unit_;
  std::unique_ptr<Device> device_ = MakeCpuDevice({});
  std::unique_ptr<Kernels> kernels_ = MakeCpuKernels(1);
  std::unique_ptr<Stream> stream_ = device_->NewStream("compute");
  std::vector<float> x_ = std::vector<float>(256, 1), y_ = x_, dy_ = x_, dx_ = x_;
  std::vector<int32_t> targets_ = std::vector<int32_t>(16, 3);
  LossSums loss_;
};

TEST_F(PacedUnitsTest, EveryPassOfABlockTakesThePassSeconds) {
  const auto block = Make(Synthetic({.pass_seconds = 0.005}), 1);
  const absl::Duration pass = absl::Milliseconds(5);
  EXPECT_EQ(Time([&] { block->Forward(Arguments(), *kernels_, *stream_); }), pass);
  EXPECT_EQ(Time([&] { block->BackwardInput(Arguments(), *kernels_, *stream_); }), pass);
  EXPECT_EQ(Time([&] { block->BackwardWeight(Arguments(), *kernels_, *stream_); }), pass);
  UnitArguments recompute = Arguments();
  recompute.y = {};
  EXPECT_EQ(Time([&] { block->Forward(recompute, *kernels_, *stream_); }), pass);
}

TEST_F(PacedUnitsTest, EmbeddingAndHeadTakeNoneOfThePassSeconds) {
  for (int unit : {0, 2}) {
    const auto compute = Make(Synthetic({.pass_seconds = 0.005}), unit);
    EXPECT_EQ(Time([&] {
                compute->Forward(Arguments(), *kernels_, *stream_);
                compute->BackwardInput(Arguments(), *kernels_, *stream_);
                compute->BackwardWeight(Arguments(), *kernels_, *stream_);
              }),
              absl::ZeroDuration());
  }
}

TEST_F(PacedUnitsTest, ByFlopsEveryPassTakesItsOwn) {
  const double rate = 1e6;
  for (int unit : {0, 1, 2}) {
    const auto compute = Make(Synthetic({.flops = rate}), unit);
    EXPECT_EQ(Time([&] { compute->Forward(Arguments(), *kernels_, *stream_); }),
              absl::Seconds(ForwardFlops(model_, unit_, batch_, sequence_) / rate));
    EXPECT_EQ(Time([&] { compute->BackwardInput(Arguments(), *kernels_, *stream_); }),
              absl::Seconds(BackwardInputFlops(model_, unit_, batch_, sequence_) / rate));
    EXPECT_EQ(Time([&] { compute->BackwardWeight(Arguments(), *kernels_, *stream_); }),
              absl::Seconds(BackwardWeightFlops(model_, unit_, batch_, sequence_) / rate));
  }
}

TEST_F(PacedUnitsTest, OutputsAreAssigned) {
  const auto block = Make(Synthetic({.pass_seconds = 0.001}), 1);
  block->Forward(Arguments(), *kernels_, *stream_);
  block->BackwardInput(Arguments(), *kernels_, *stream_);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_TRUE(std::all_of(y_.begin(), y_.end(), [](float value) { return value == 0; }));
  EXPECT_TRUE(std::all_of(dx_.begin(), dx_.end(), [](float value) { return value == 0; }));
  EXPECT_EQ(x_[0], 1);
  EXPECT_EQ(dy_[0], 1);
}

TEST_F(PacedUnitsTest, TheHeadCountsValidTargets) {
  targets_[0] = targets_[7] = targets_[15] = kIgnoredTarget;
  const auto head = Make(Synthetic({.pass_seconds = 0.001}), 2);
  head->Forward(Arguments(), *kernels_, *stream_);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(loss_.valid_tokens, 13);
  EXPECT_EQ(loss_.loss, 0);
}

TEST_F(PacedUnitsTest, AnEmptyMicroBatchTakesNoTime) {
  const auto block = Make(Synthetic({.pass_seconds = 0.005}), 1);
  UnitArguments empty;
  empty.sequence = sequence_;
  EXPECT_EQ(Time([&] {
              block->Forward(empty, *kernels_, *stream_);
              block->BackwardInput(empty, *kernels_, *stream_);
              block->BackwardWeight(empty, *kernels_, *stream_);
            }),
            absl::ZeroDuration());
}

TEST_F(PacedUnitsTest, ASlowedUnitTakesTheFactorAndComputesTheSame) {
  const UnitFactory plain = Synthetic({.pass_seconds = 0.004});
  // Its own pacer: the passes of the inner one move the clock as computation would.
  const auto slow =
      std::make_shared<Pacer>(clock_, [this](absl::Time until) { clock_.Set(until); });
  const auto block = Make(SlowedUnits(plain, 2.5, slow), 1);
  EXPECT_EQ(Time([&] { block->Forward(Arguments(), *kernels_, *stream_); }),
            absl::Milliseconds(10));
  EXPECT_EQ(Time([&] { block->BackwardInput(Arguments(), *kernels_, *stream_); }),
            absl::Milliseconds(10));
  EXPECT_EQ(Time([&] { block->BackwardWeight(Arguments(), *kernels_, *stream_); }),
            absl::Milliseconds(10));
  EXPECT_EQ(y_[0], 0);
  EXPECT_EQ(dx_[0], 0);
}

}  // namespace
}  // namespace esteira
