// The gradients of one block against differences of its output, in a direction that moves
// everything at once.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/model/backends.h"
#include "tests/worker/model/fixture.h"
#include "tests/worker/model/small_model.h"

namespace esteira {
namespace {

constexpr int kBlock = 1;
constexpr int64_t kBatch = 2;
constexpr int64_t kSequence = 5;

class FiniteDifferenceTest : public testing::TestWithParam<std::string> {
 protected:
  FiniteDifferenceTest()
      : fixture_(ReadFixture(GetParam())),
        model_(fixture_.model, Precision::kFp32, MakeTestKernels(BackendKind::kReference)),
        flight_(model_.Launch(MakeTestBatch(fixture_.model, kBatch, kSequence), kBatch)) {}

  Tensor Activation(const GuardedBuffer& buffer) const {
    return {buffer.data(), ElementType::kFp32, kBatch * kSequence, fixture_.model.hidden_size};
  }
  std::vector<float> Values(const std::string& name) const {
    std::vector<float> values;
    for (int64_t i = 0; i < kBatch * kSequence * fixture_.model.hidden_size; ++i) {
      values.push_back(FixtureWeight(name, i) * 4);
    }
    return values;
  }
  // sum(y * dy) with x and all parameters moved by `step` along the direction.
  double Output(float step, bool move_x, bool move_parameters) {
    std::vector<float> x = Values("x");
    for (size_t i = 0; move_x && i < x.size(); ++i) x[i] += step * Values("direction")[i];
    WriteFloats(x, Activation(flight_.y[kBlock - 1]));
    model_.SetParameters([&](const std::string& name, int64_t index) {
      const float moved = move_parameters ? step * FixtureWeight(name + "'", index) : 0;
      return FixtureWeight(name, index) + moved;
    });
    model_.Forward(flight_, kBlock, SmallModel::Mode::kTrain);
    const std::vector<float> y = ReadFloats(Activation(flight_.y[kBlock]));
    const std::vector<float> dy = Values("dy");
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * dy[i];
    return sum;
  }
  double Slope(bool move_x, bool move_parameters) {
    constexpr float kStep = 1.0F / 256;
    return (Output(kStep, move_x, move_parameters) - Output(-kStep, move_x, move_parameters)) /
           (2.0 * kStep);
  }

  void Check() {
    const double slope_of_x = Slope(true, false);
    const double slope_of_parameters = Slope(false, true);
    Output(0, false, false);
    WriteFloats(Values("dy"), Activation(flight_.dx[kBlock + 1]));
    model_.BackwardInput(flight_, kBlock);
    model_.BackwardWeight(flight_, kBlock);

    double along_x = 0;
    const std::vector<float> dx = ReadFloats(Activation(flight_.dx[kBlock]));
    const std::vector<float> direction = Values("direction");
    for (size_t i = 0; i < dx.size(); ++i) along_x += static_cast<double>(dx[i]) * direction[i];
    EXPECT_NEAR(slope_of_x / along_x, 1, 1e-3);

    double along_parameters = 0;
    for (const ParameterSpec& parameter : model_.units()[kBlock].parameters) {
      const float* gradient = model_.gradients(kBlock) + parameter.offset;
      for (int64_t i = 0; i < parameter.elements; ++i) {
        along_parameters +=
            static_cast<double>(gradient[i]) * FixtureWeight(parameter.name + "'", i);
      }
    }
    EXPECT_NEAR(slope_of_parameters / along_parameters, 1, 1e-3);
  }

  Fixture fixture_;
  SmallModel model_;
  InFlight flight_;
};

TEST_P(FiniteDifferenceTest, AgreesWithTheBackwardPasses) { Check(); }

TEST_P(FiniteDifferenceTest, AgreesWithThemUnderDropout) {
  model_.SetDropout(0.4);
  Check();
}

INSTANTIATE_TEST_SUITE_P(Models, FiniteDifferenceTest,
                         testing::Values("gpt2_untied", "llama_untied"));

}  // namespace
}  // namespace esteira
