#include "common/plan/model_spec.h"

#include <cmath>
#include <string>

#include "common/plan/layout.h"
#include "common/plan/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;

ModelSpec Gpt2(bool tied) {
  ModelSpec model;
  model.architecture = Architecture::kGpt2;
  model.num_layers = 12;
  model.hidden_size = 768;
  model.num_heads = 12;
  model.num_kv_heads = 12;
  model.intermediate_size = 3072;
  model.vocab_size = 50257;
  model.max_sequence_length = 1024;
  model.tie_embeddings = tied;
  return model;
}

ModelSpec Llama(bool tied) {  // the sizes of Llama-3.2-1B
  ModelSpec model;
  model.architecture = Architecture::kLlama;
  model.num_layers = 16;
  model.hidden_size = 2048;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.intermediate_size = 8192;
  model.vocab_size = 128256;
  model.max_sequence_length = 131072;
  model.tie_embeddings = tied;
  return model;
}

std::vector<std::string> Describe(const UnitSpec& unit) {
  std::vector<std::string> lines;
  for (const ParameterSpec& parameter : unit.parameters) {
    std::string line = parameter.name;
    for (int64_t size : parameter.shape) line += " " + std::to_string(size);
    lines.push_back(line);
  }
  return lines;
}

TEST(ModelSpecTest, CountsAsPublished) {
  EXPECT_EQ(CountParameters(Gpt2(true)), 124439808);
  EXPECT_EQ(CountParameters(Gpt2(false)), 124439808 + 50257 * 768);
  EXPECT_EQ(CountParameters(Llama(true)), 1235814400);
}

TEST(ModelSpecTest, Gpt2HasTheNamesAndShapesOfHuggingFace) {
  const auto units = MakeUnits(Gpt2(false));
  ASSERT_EQ(units.size(), 14u);
  EXPECT_THAT(Describe(units[0]),
              ElementsAre("transformer.wte.weight 50257 768", "transformer.wpe.weight 1024 768"));
  EXPECT_THAT(
      Describe(units[12]),
      ElementsAre(
          "transformer.h.11.ln_1.weight 768", "transformer.h.11.ln_1.bias 768",
          "transformer.h.11.attn.c_attn.weight 768 2304", "transformer.h.11.attn.c_attn.bias 2304",
          "transformer.h.11.attn.c_proj.weight 768 768", "transformer.h.11.attn.c_proj.bias 768",
          "transformer.h.11.ln_2.weight 768", "transformer.h.11.ln_2.bias 768",
          "transformer.h.11.mlp.c_fc.weight 768 3072", "transformer.h.11.mlp.c_fc.bias 3072",
          "transformer.h.11.mlp.c_proj.weight 3072 768", "transformer.h.11.mlp.c_proj.bias 768"));
  EXPECT_THAT(Describe(units[13]),
              ElementsAre("transformer.ln_f.weight 768", "transformer.ln_f.bias 768",
                          "lm_head.weight 50257 768"));
}

TEST(ModelSpecTest, LlamaHasTheNamesAndShapesOfHuggingFace) {
  const auto units = MakeUnits(Llama(false));
  ASSERT_EQ(units.size(), 18u);
  EXPECT_THAT(Describe(units[0]), ElementsAre("model.embed_tokens.weight 128256 2048"));
  EXPECT_THAT(Describe(units[1]), ElementsAre("model.layers.0.input_layernorm.weight 2048",
                                              "model.layers.0.self_attn.q_proj.weight 2048 2048",
                                              "model.layers.0.self_attn.k_proj.weight 512 2048",
                                              "model.layers.0.self_attn.v_proj.weight 512 2048",
                                              "model.layers.0.self_attn.o_proj.weight 2048 2048",
                                              "model.layers.0.post_attention_layernorm.weight 2048",
                                              "model.layers.0.mlp.gate_proj.weight 8192 2048",
                                              "model.layers.0.mlp.up_proj.weight 8192 2048",
                                              "model.layers.0.mlp.down_proj.weight 2048 8192"));
  EXPECT_THAT(Describe(units[17]),
              ElementsAre("model.norm.weight 2048", "lm_head.weight 128256 2048"));
}

TEST(ModelSpecTest, ATiedTableIsTwoUnitsOfOneParameter) {
  const ModelSpec model = Llama(true);
  const auto units = MakeUnits(model);
  ASSERT_EQ(units.size(), 20u);
  const UnitSpec& owner = units[static_cast<size_t>(TiedEmbeddingEnd(model))];
  const UnitSpec& copy = units[static_cast<size_t>(TiedHeadEnd(model))];
  EXPECT_THAT(Describe(owner), ElementsAre("model.embed_tokens.weight 128256 2048"));
  EXPECT_EQ(Describe(copy), Describe(owner));
  EXPECT_EQ(owner.owner, -1);
  EXPECT_EQ(copy.owner, TiedEmbeddingEnd(model));
  EXPECT_EQ(units[0].flat_elements, 0);
  EXPECT_THAT(Describe(units[17]), ElementsAre("model.norm.weight 2048"));
  EXPECT_THAT(units[0].uses, ElementsAre(0, 18));
  EXPECT_THAT(units[17].uses, ElementsAre(17, 19));
  EXPECT_THAT(units[5].uses, ElementsAre(5));
  EXPECT_TRUE(owner.uses.empty());
}

TEST(ModelSpecTest, ParametersStartAtBlocksAndDoNotOverlap) {
  ModelSpec odd = Gpt2(false);
  odd.hidden_size = 6;
  odd.num_heads = odd.num_kv_heads = 3;
  odd.intermediate_size = 7;
  odd.vocab_size = 11;
  odd.max_sequence_length = 5;
  for (const UnitSpec& unit : MakeUnits(odd)) {
    int64_t end = 0, elements = 0;
    for (const ParameterSpec& parameter : unit.parameters) {
      EXPECT_EQ(parameter.offset % kBlockElements, 0);
      EXPECT_GE(parameter.offset, end);
      EXPECT_LT(parameter.offset, end + kBlockElements);
      end = parameter.offset + parameter.elements;
      elements += parameter.elements;
    }
    EXPECT_EQ(unit.flat_elements % kBlockElements, 0);
    EXPECT_GE(unit.flat_elements, end);
    EXPECT_LT(unit.flat_elements, end + kBlockElements);
    EXPECT_EQ(unit.parameter_elements, elements);
  }
}

TEST(ModelSpecTest, InitialWeightsAndDecay) {
  for (const ModelSpec& model : {Gpt2(false), Llama(false)}) {
    for (const UnitSpec& unit : MakeUnits(model)) {
      for (const ParameterSpec& parameter : unit.parameters) {
        const bool matrix = parameter.shape.size() == 2;
        const bool bias = parameter.name.find(".bias") != std::string::npos;
        const bool residual = parameter.name.find("c_proj") != std::string::npos;
        EXPECT_EQ(parameter.decay, matrix) << parameter.name;
        EXPECT_EQ(parameter.init, matrix ? Init::kNormal
                                  : bias ? Init::kZeros
                                         : Init::kOnes)
            << parameter.name;
        const double expected = !matrix ? 0 : residual ? 0.02 / std::sqrt(2.0 * 12) : 0.02;
        EXPECT_DOUBLE_EQ(parameter.init_std, expected) << parameter.name;
      }
    }
  }
}

TEST(ModelSpecTest, FlopsPerToken) {
  ModelSpec model = Gpt2(true);
  const double matrices = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(model, 1024), 6 * matrices + 6.0 * 12 * 768 * 1024);
  model.tie_embeddings = false;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(model, 1024), 6 * matrices + 6.0 * 12 * 768 * 1024);
}

TEST(ModelSpecTest, Names) {
  EXPECT_EQ(*ParseArchitecture("llama"), Architecture::kLlama);
  EXPECT_FALSE(ParseArchitecture("GPT2").ok());
  EXPECT_EQ(*ParsePrecision(PrecisionName(Precision::kFp32)), Precision::kFp32);
  EXPECT_FALSE(ParsePrecision("").ok());
  EXPECT_EQ(*ParseNumerics(NumericsName(Numerics::kFast)), Numerics::kFast);
  EXPECT_EQ(*ParseNumerics(NumericsName(Numerics::kExact)), Numerics::kExact);
  EXPECT_FALSE(ParseNumerics("").ok());
  for (GradientTraffic traffic : {GradientTraffic::kFull, GradientTraffic::kBf16}) {
    EXPECT_EQ(*ParseGradientTraffic(GradientTrafficName(traffic)), traffic);
  }
  EXPECT_FALSE(ParseGradientTraffic("fp16").ok());
  EXPECT_EQ(BytesOf(Precision::kBf16), 2);
}

TEST(ShardMapTest, ShardsAreEqualBlocksThatCoverTheBuffer) {
  for (int64_t flat : {0, 64, 128, 448, 64 * 101}) {
    for (int replicas : {1, 2, 3, 5, 7}) {
      const ShardMap map(flat, replicas);
      EXPECT_EQ(map.shard_elements() % kBlockElements, 0);
      EXPECT_GE(map.padded_elements(), flat);
      EXPECT_LT(map.padded_elements(), flat + replicas * kBlockElements);
      int64_t end = 0;
      for (int replica = 0; replica < replicas; ++replica) {
        EXPECT_EQ(map.Shard(replica).begin, end);
        end = map.Shard(replica).end;
      }
      EXPECT_EQ(end, map.padded_elements());
    }
  }
}

TEST(LayoutTest, MicroBatchesOfAReplica) {
  Layout layout;
  const auto count = [&](int64_t batch, int64_t size, int replicas) {
    layout.global_batch_size = batch;
    layout.micro_batch_size = size;
    layout.replicas = replicas;
    return layout.num_micro_batches();
  };
  EXPECT_EQ(count(8, 2, 1), 4);
  EXPECT_EQ(count(9, 2, 1), 5);
  EXPECT_EQ(count(9, 2, 3), 2);
  EXPECT_EQ(count(1, 4, 3), 1);
  EXPECT_EQ(count(7, 1, 7), 1);
}

TEST(LayoutTest, RanksAreStagesWithinReplicas) {
  Layout layout;
  layout.stages = 3;
  layout.replicas = 2;
  EXPECT_EQ(layout.RankOf(1, 1), 4);
  EXPECT_EQ(layout.StageOfRank(4), 1);
  EXPECT_EQ(layout.ReplicaOfRank(4), 1);
}

}  // namespace
}  // namespace esteira
