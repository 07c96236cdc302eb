#include "common/checkpoint/model_config.h"

#include <gmock/gmock.h>

#include "nlohmann/json.hpp"

namespace esteira {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ModelConfig Gpt2() {
  return {{Architecture::kGpt2, 3, 48, 4, 4, 100, 257, 64, true, 1e-5, 10000}, Precision::kBf16};
}
ModelConfig Llama() {
  return {{Architecture::kLlama, 5, 64, 8, 2, 172, 1000, 128, false, 1e-6, 500000},
          Precision::kFp32};
}

json With(const ModelConfig& config, const json& changes) {
  json object = json::parse(PrintModelConfig(config));
  object.merge_patch(changes);
  return object;
}

TEST(ModelConfigTest, RoundTrip) {
  for (ModelConfig config : {Gpt2(), Llama()}) {
    for (const bool tied : {true, false}) {
      config.model.tie_embeddings = tied;
      auto parsed = ParseModelConfig(PrintModelConfig(config));
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(*parsed, config);
    }
  }
}

TEST(ModelConfigTest, WhatTransformersReads) {
  const json gpt2 = json::parse(PrintModelConfig(Gpt2()));
  EXPECT_EQ(gpt2["architectures"], json({"GPT2LMHeadModel"}));
  EXPECT_EQ(gpt2["model_type"], "gpt2");
  EXPECT_EQ(gpt2["activation_function"], "gelu_new");
  EXPECT_EQ(gpt2["torch_dtype"], "bfloat16");
  EXPECT_EQ(gpt2["n_inner"], 100);
  const json llama = json::parse(PrintModelConfig(Llama()));
  EXPECT_EQ(llama["architectures"], json({"LlamaForCausalLM"}));
  EXPECT_EQ(llama["num_key_value_heads"], 2);
  EXPECT_EQ(llama["rope_theta"], 500000);
  EXPECT_EQ(llama["torch_dtype"], "float32");
}

// The fields of the released config.json of GPT-2 that matter: no n_inner, no tie_word_embeddings,
// no torch_dtype.
TEST(ModelConfigTest, DefaultsOfTransformers) {
  auto config =
      ParseModelConfig(R"({"activation_function": "gelu_new", "model_type": "gpt2", "n_ctx": 1024,
      "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-05,
      "vocab_size": 50257})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.intermediate_size, 3072);
  EXPECT_EQ(config->model.num_kv_heads, 12);
  EXPECT_TRUE(config->model.tie_embeddings);
  EXPECT_EQ(config->precision, Precision::kFp32);
}

TEST(ModelConfigTest, WhatWouldComputeSomethingElseIsRefused) {
  const auto error = [](const json& object) { return ParseModelConfig(object.dump()).status(); };
  for (const json& change :
       {json{{"hidden_act", "gelu"}}, json{{"attention_bias", true}}, json{{"mlp_bias", true}},
        json{{"rope_scaling", {{"type", "linear"}}}}, json{{"head_dim", 16}},
        json{{"model_type", "mamba"}}, json{{"torch_dtype", "float16"}}}) {
    EXPECT_EQ(error(With(Llama(), change)).code(), absl::StatusCode::kUnimplemented) << change;
  }
  for (const json& change :
       {json{{"activation_function", "relu"}}, json{{"scale_attn_weights", false}},
        json{{"scale_attn_by_inverse_layer_idx", true}}}) {
    EXPECT_EQ(error(With(Gpt2(), change)).code(), absl::StatusCode::kUnimplemented) << change;
  }
}

TEST(ModelConfigTest, FaultsNameTheField) {
  const auto error = [](const json& object) {
    return ParseModelConfig(object.dump()).status().ToString();
  };
  EXPECT_THAT(ParseModelConfig("nonsense").status().ToString(), HasSubstr("config.json"));
  EXPECT_THAT(error(With(Gpt2(), {{"n_layer", nullptr}})), HasSubstr("\"n_layer\""));
  EXPECT_THAT(error(With(Gpt2(), {{"n_layer", "3"}})), HasSubstr("\"n_layer\""));
  EXPECT_THAT(error(With(Gpt2(), {{"n_layer", 0}})), HasSubstr("\"n_layer\" is 0"));
  EXPECT_THAT(error(With(Gpt2(), {{"n_embd", int64_t{1} << 60}})), HasSubstr("\"n_embd\""));
  EXPECT_THAT(error(With(Gpt2(), {{"n_head", 5}})), HasSubstr("do not divide"));
  EXPECT_THAT(error(With(Llama(), {{"num_key_value_heads", 3}})), HasSubstr("do not divide"));
}

}  // namespace
}  // namespace esteira
