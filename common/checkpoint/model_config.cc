#include "common/checkpoint/model_config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

absl::Status NotBuiltIn(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(kModelConfigName, ": ", what, " is not built in"));
}

json Common(const ModelConfig& config) {
  return {{"torch_dtype", config.precision == Precision::kBf16 ? "bfloat16" : "float32"},
          {"vocab_size", config.model.vocab_size},
          {"tie_word_embeddings", config.model.tie_embeddings},
          {"initializer_range", 0.02},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"use_cache", true}};
}

json Gpt2Config(const ModelConfig& config) {
  const ModelSpec& model = config.model;
  json object = Common(config);
  object.update({{"architectures", {"GPT2LMHeadModel"}},
                 {"model_type", "gpt2"},
                 {"n_layer", model.num_layers},
                 {"n_embd", model.hidden_size},
                 {"n_head", model.num_heads},
                 {"n_inner", model.intermediate_size},
                 {"n_positions", model.max_sequence_length},
                 {"n_ctx", model.max_sequence_length},
                 {"layer_norm_epsilon", model.norm_epsilon},
                 {"activation_function", "gelu_new"},
                 {"scale_attn_weights", true},
                 {"resid_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"attn_pdrop", 0.0}});
  return object;
}

json LlamaConfig(const ModelConfig& config) {
  const ModelSpec& model = config.model;
  json object = Common(config);
  object.update({{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"num_hidden_layers", model.num_layers},
                 {"hidden_size", model.hidden_size},
                 {"num_attention_heads", model.num_heads},
                 {"num_key_value_heads", model.num_kv_heads},
                 {"head_dim", model.head_size()},
                 {"intermediate_size", model.intermediate_size},
                 {"max_position_embeddings", model.max_sequence_length},
                 {"rms_norm_eps", model.norm_epsilon},
                 {"rope_theta", model.rope_theta},
                 {"rope_scaling", nullptr},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"attention_dropout", 0.0}});
  return object;
}

absl::StatusOr<int64_t> SizeField(const json& object, const char* name) {
  ASSIGN_OR_RETURN(const int64_t size, IntField(object, name));
  if (size < 1 || size > (int64_t{1} << 31)) {
    return absl::DataLossError(
        absl::StrCat("field \"", name, "\" is ", size, ", which is no size"));
  }
  return size;
}

absl::StatusOr<int64_t> SizeFieldOr(const json& object, const char* name, int64_t absent) {
  return HasField(object, name) ? SizeField(object, name) : absent;
}
absl::StatusOr<double> NumberFieldOr(const json& object, const char* name, double absent) {
  return HasField(object, name) ? NumberField(object, name) : absent;
}
absl::StatusOr<bool> BoolFieldOr(const json& object, const char* name, bool absent) {
  return HasField(object, name) ? BoolField(object, name) : absent;
}
absl::StatusOr<std::string> StringFieldOr(const json& object, const char* name,
                                          const char* absent) {
  return HasField(object, name) ? StringField(object, name) : std::string(absent);
}

absl::StatusOr<ModelSpec> ParseGpt2(const json& object) {
  ModelSpec model;
  model.architecture = Architecture::kGpt2;
  ASSIGN_OR_RETURN(model.vocab_size, SizeField(object, "vocab_size"));
  ASSIGN_OR_RETURN(model.num_layers, SizeField(object, "n_layer"));
  ASSIGN_OR_RETURN(model.hidden_size, SizeField(object, "n_embd"));
  ASSIGN_OR_RETURN(model.num_heads, SizeField(object, "n_head"));
  ASSIGN_OR_RETURN(model.intermediate_size, SizeFieldOr(object, "n_inner", 4 * model.hidden_size));
  ASSIGN_OR_RETURN(model.max_sequence_length, SizeField(object, "n_positions"));
  ASSIGN_OR_RETURN(model.norm_epsilon, NumberFieldOr(object, "layer_norm_epsilon", 1e-5));
  ASSIGN_OR_RETURN(model.tie_embeddings, BoolFieldOr(object, "tie_word_embeddings", true));
  model.num_kv_heads = model.num_heads;
  ASSIGN_OR_RETURN(const std::string activation,
                   StringFieldOr(object, "activation_function", "gelu_new"));
  if (activation != "gelu_new") return NotBuiltIn("activation " + activation);
  ASSIGN_OR_RETURN(const bool scaled, BoolFieldOr(object, "scale_attn_weights", true));
  ASSIGN_OR_RETURN(const bool by_layer,
                   BoolFieldOr(object, "scale_attn_by_inverse_layer_idx", false));
  if (!scaled || by_layer) return NotBuiltIn("attention with another scale");
  return model;
}

absl::StatusOr<ModelSpec> ParseLlama(const json& object) {
  ModelSpec model;
  model.architecture = Architecture::kLlama;
  ASSIGN_OR_RETURN(model.vocab_size, SizeField(object, "vocab_size"));
  ASSIGN_OR_RETURN(model.num_layers, SizeField(object, "num_hidden_layers"));
  ASSIGN_OR_RETURN(model.hidden_size, SizeField(object, "hidden_size"));
  ASSIGN_OR_RETURN(model.num_heads, SizeField(object, "num_attention_heads"));
  ASSIGN_OR_RETURN(model.num_kv_heads, SizeFieldOr(object, "num_key_value_heads", model.num_heads));
  ASSIGN_OR_RETURN(model.intermediate_size, SizeField(object, "intermediate_size"));
  ASSIGN_OR_RETURN(model.max_sequence_length, SizeField(object, "max_position_embeddings"));
  ASSIGN_OR_RETURN(model.norm_epsilon, NumberFieldOr(object, "rms_norm_eps", 1e-6));
  ASSIGN_OR_RETURN(model.rope_theta, NumberFieldOr(object, "rope_theta", 10000));
  ASSIGN_OR_RETURN(model.tie_embeddings, BoolFieldOr(object, "tie_word_embeddings", false));
  ASSIGN_OR_RETURN(const std::string activation, StringFieldOr(object, "hidden_act", "silu"));
  if (activation != "silu") return NotBuiltIn("activation " + activation);
  if (HasField(object, "rope_scaling")) return NotBuiltIn("rope_scaling");
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    ASSIGN_OR_RETURN(const bool set, BoolFieldOr(object, bias, false));
    if (set) return NotBuiltIn(bias);
  }
  ASSIGN_OR_RETURN(const int64_t head_size,
                   SizeFieldOr(object, "head_dim", model.hidden_size / model.num_heads));
  if (head_size * model.num_heads != model.hidden_size) return NotBuiltIn("a head_dim of its own");
  return model;
}

absl::StatusOr<ModelSpec> ParseModel(const json& object) {
  ASSIGN_OR_RETURN(const std::string type, StringField(object, "model_type"));
  if (type != "gpt2" && type != "llama")
    return NotBuiltIn(absl::StrCat("model type \"", type, "\""));
  ASSIGN_OR_RETURN(ModelSpec model, type == "gpt2" ? ParseGpt2(object) : ParseLlama(object));
  if (model.hidden_size % model.num_heads != 0 || model.num_heads % model.num_kv_heads != 0) {
    return absl::DataLossError(absl::StrCat("hidden size ", model.hidden_size, ", ",
                                            model.num_heads, " heads and ", model.num_kv_heads,
                                            " key-value heads do not divide"));
  }
  return model;
}

absl::StatusOr<ModelConfig> ParseFields(absl::string_view text) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, "it"));
  ModelConfig config;
  ASSIGN_OR_RETURN(config.model, ParseModel(object));
  const char* field = HasField(object, "torch_dtype") ? "torch_dtype" : "dtype";
  ASSIGN_OR_RETURN(const std::string type, StringFieldOr(object, field, "float32"));
  if (type != "float32" && type != "bfloat16") return NotBuiltIn(absl::StrCat(field, " ", type));
  config.precision = type == "bfloat16" ? Precision::kBf16 : Precision::kFp32;
  return config;
}

}  // namespace

std::string PrintModelConfig(const ModelConfig& config) {
  return PrintJson(config.model.architecture == Architecture::kGpt2 ? Gpt2Config(config)
                                                                    : LlamaConfig(config));
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text) {
  absl::StatusOr<ModelConfig> config = ParseFields(text);
  if (config.status().code() == absl::StatusCode::kDataLoss) {
    return absl::DataLossError(absl::StrCat(kModelConfigName, ": ", config.status().message()));
  }
  return config;
}

}  // namespace esteira
