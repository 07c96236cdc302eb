// Loss, logits and the gradient of every parameter against PyTorch and Hugging Face transformers.

#include "tests/worker/model/fixture.h"

#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/worker/model/backends.h"
#include "tests/worker/model/small_model.h"

namespace esteira {
namespace {

using Parameters = std::tuple<std::string, BackendKind, Precision>;

class FixtureTest : public testing::TestWithParam<Parameters> {
 protected:
  FixtureTest() : fixture_(ReadFixture(std::get<0>(GetParam()))) {
    const Precision precision = std::get<2>(GetParam());
    model_ = std::make_unique<SmallModel>(fixture_.model, precision,
                                          MakeTestKernels(std::get<1>(GetParam())));
    model_->SetParameters(FixtureWeight);
    tolerance_ = precision == Precision::kFp32 ? 1e-5 : 3e-2;
  }

  Fixture fixture_;
  std::unique_ptr<SmallModel> model_;
  double tolerance_ = 0;
};

TEST_P(FixtureTest, EvaluationGivesLossAndLogits) {
  InFlight flight = model_->Launch(fixture_.batch, fixture_.batch.batch);
  model_->ForwardAll(flight, SmallModel::Mode::kEvaluate);
  EXPECT_NEAR(model_->loss()->loss, fixture_.loss, tolerance_ * fixture_.loss);
  EXPECT_EQ(model_->loss()->valid_tokens, fixture_.valid_tokens);
  EXPECT_LT(RelativeError(model_->Logits(flight), fixture_.logits), tolerance_);
}

TEST_P(FixtureTest, TrainingGivesLossAndEveryGradient) {
  InFlight flight = model_->Launch(fixture_.batch, fixture_.batch.batch);
  model_->ForwardAll(flight);
  EXPECT_NEAR(model_->loss()->loss, fixture_.loss, tolerance_ * fixture_.loss);
  EXPECT_EQ(model_->loss()->valid_tokens, fixture_.valid_tokens);
  model_->BackwardAll(flight);

  std::set<std::string> names;
  for (const UnitSpec& unit : model_->units()) {
    for (const ParameterSpec& parameter : unit.parameters) names.insert(parameter.name);
  }
  EXPECT_EQ(names.size(), fixture_.gradients.size());
  for (const auto& [name, expected] : fixture_.gradients) {
    ASSERT_EQ(model_->Gradient(name).size(), expected.size()) << name;
    EXPECT_LT(RelativeError(model_->Gradient(name), expected), tolerance_) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, FixtureTest,
    testing::Combine(testing::Values("gpt2_untied", "gpt2_tied", "llama_untied", "llama_tied"),
                     testing::Values(BackendKind::kCpu, BackendKind::kReference),
                     testing::Values(Precision::kFp32, Precision::kBf16)),
    [](const testing::TestParamInfo<Parameters>& instance) {
      return std::get<0>(instance.param) + "_" + BackendName(std::get<1>(instance.param)) + "_" +
             PrecisionName(std::get<2>(instance.param));
    });

}  // namespace
}  // namespace esteira
