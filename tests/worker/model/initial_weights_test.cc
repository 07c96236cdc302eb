#include <cmath>
#include <vector>

#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/plan/model_spec.h"
#include "common/plan/shard_map.h"
#include "gtest/gtest.h"
#include "worker/model/unit_compute.h"

namespace esteira {
namespace {

ModelSpec Model(Architecture architecture) {
  ModelSpec model;
  model.architecture = architecture;
  model.num_layers = 8;
  model.hidden_size = 60;  // vectors end inside a block, so there are gaps
  model.num_heads = 6;
  model.num_kv_heads = architecture == Architecture::kGpt2 ? 6 : 2;
  model.intermediate_size = 100;
  model.vocab_size = 101;
  model.max_sequence_length = 32;
  return model;
}

std::vector<float> Weights(const UnitSpec& unit, uint64_t seed, const Range& range) {
  std::vector<float> weights(static_cast<size_t>(range.size()), -7);
  InitialWeights(unit, seed, range, weights);
  return weights;
}

std::vector<float> Whole(const UnitSpec& unit, uint64_t seed) {
  return Weights(unit, seed, {0, unit.flat_elements});
}

class InitialWeightsTest : public testing::TestWithParam<Architecture> {
 protected:
  std::vector<UnitSpec> units_ = MakeUnits(Model(GetParam()));
};

TEST_P(InitialWeightsTest, AnyCutGivesTheSame) {
  for (const UnitSpec& unit : units_) {
    for (int replicas : {2, 3, 7}) {
      const ShardMap shards(unit.flat_elements, replicas);
      std::vector<float> joined;
      for (int replica = 0; replica < replicas; ++replica) {
        const std::vector<float> part = Weights(unit, 5, shards.Shard(replica));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      std::vector<float> whole = Whole(unit, 5);
      whole.resize(joined.size(), 0);  // padding
      EXPECT_EQ(joined, whole);
    }
  }
}

TEST_P(InitialWeightsTest, RangesMayCutAnywhere) {
  const UnitSpec& block = units_[1];
  const std::vector<float> whole = Whole(block, 5);
  const std::vector<float> part = Weights(block, 5, {61, 4001});
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 61, whole.begin() + 4001));
  EXPECT_TRUE(Weights(block, 5, {70, 70}).empty());
}

TEST_P(InitialWeightsTest, FollowTheirDistribution) {
  for (const UnitSpec& unit : units_) {
    const std::vector<float> weights = Whole(unit, 11);
    for (const ParameterSpec& parameter : unit.parameters) {
      double sum = 0;
      double squares = 0;
      for (int64_t i = 0; i < parameter.elements; ++i) {
        const double value = weights[static_cast<size_t>(parameter.offset + i)];
        sum += value;
        squares += value * value;
      }
      const auto count = static_cast<double>(parameter.elements);
      if (parameter.init == Init::kNormal) {
        EXPECT_LT(std::abs(sum), 4 * parameter.init_std * std::sqrt(count)) << parameter.name;
        // The variance of a sample variance is 2 std^4 / count.
        EXPECT_NEAR(squares / count / std::pow(parameter.init_std, 2), 1, 4 * std::sqrt(2 / count))
            << parameter.name;
      } else {
        const double value = parameter.init == Init::kOnes ? 1 : 0;
        EXPECT_EQ(sum, value * count) << parameter.name;
        EXPECT_EQ(squares, value * count) << parameter.name;
      }
    }
  }
}

TEST_P(InitialWeightsTest, GapsAreZero) {
  const UnitSpec& block = units_[1];
  const std::vector<float> weights = Whole(block, 5);
  int64_t gaps = 0;
  for (size_t p = 0; p < block.parameters.size(); ++p) {
    const ParameterSpec& parameter = block.parameters[p];
    const int64_t next =
        p + 1 < block.parameters.size() ? block.parameters[p + 1].offset : block.flat_elements;
    for (int64_t i = parameter.offset + parameter.elements; i < next; ++i, ++gaps) {
      EXPECT_EQ(weights[static_cast<size_t>(i)], 0);
    }
  }
  EXPECT_EQ(gaps, block.flat_elements - block.parameter_elements);
  EXPECT_GT(gaps, 0);
}

TEST_P(InitialWeightsTest, DifferBySeedAndLayer) {
  const ParameterSpec& matrix = units_[1].parameters[GetParam() == Architecture::kGpt2 ? 2 : 1];
  ASSERT_EQ(matrix.init, Init::kNormal);
  const auto at = static_cast<size_t>(matrix.offset);
  EXPECT_NE(Whole(units_[1], 5)[at], Whole(units_[1], 6)[at]);
  EXPECT_NE(Whole(units_[1], 5)[at], Whole(units_[2], 5)[at]);
}

INSTANTIATE_TEST_SUITE_P(Models, InitialWeightsTest,
                         testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const testing::TestParamInfo<Architecture>& instance) {
                           return ArchitectureName(instance.param);
                         });

// Values of a second implementation (Philox4x32-10 and Box-Muller in Python).
TEST(InitialWeightsKnownAnswerTest, StayTheSameInEveryRelease) {
  const std::vector<UnitSpec> units = MakeUnits(Model(Architecture::kGpt2));
  const std::vector<float> table = Weights(units[0], 1, {0, 4});
  const std::vector<float> expected = {-0.00736041655F, -0.0246894586F, -0.0117091628F,
                                       0.00410013492F};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(table[i], expected[i]);
}

TEST(InitialWeightsKnownAnswerTest, AreAFunctionOfNameAndIndexWithinTheParameter) {
  const UnitSpec block = MakeUnits(Model(Architecture::kLlama))[3];
  const ParameterSpec& gate = block.parameters[6];
  ASSERT_EQ(gate.name, "model.layers.2.mlp.gate_proj.weight");
  const double expected =
      0.02 * RandomNormal(9, HashName("model.layers.2.mlp.gate_proj.weight"), 17);
  EXPECT_EQ(Weights(block, 9, {gate.offset + 17, gate.offset + 18})[0],
            static_cast<float>(expected));
}

}  // namespace
}  // namespace esteira
