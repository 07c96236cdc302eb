#include "common/plan/model_spec.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

// Standard deviation of normal initial weights, as in the models' own releases.
constexpr double kInitStd = 0.02;

// Lays the parameters of one unit out in its flat buffer, in the order of the calls.
class UnitBuilder {
 public:
  UnitBuilder(UnitKind kind, int64_t layer) {
    unit_.kind = kind;
    unit_.layer = layer;
  }

  UnitBuilder& Matrix(std::string name, int64_t rows, int64_t columns, double init_std = kInitStd) {
    return Add(std::move(name), {rows, columns}, Init::kNormal, init_std);
  }
  UnitBuilder& Ones(std::string name, int64_t size) {
    return Add(std::move(name), {size}, Init::kOnes, 0);
  }
  UnitBuilder& Zeros(std::string name, int64_t size) {
    return Add(std::move(name), {size}, Init::kZeros, 0);
  }
  UnitSpec Build() { return std::move(unit_); }

 private:
  UnitBuilder& Add(std::string name, std::vector<int64_t> shape, Init init, double init_std) {
    ParameterSpec parameter;
    parameter.name = std::move(name);
    parameter.elements = 1;
    for (int64_t size : shape) parameter.elements *= size;
    parameter.init = init;
    parameter.init_std = init_std;
    parameter.decay = shape.size() == 2;
    parameter.shape = std::move(shape);
    parameter.offset = unit_.flat_elements;
    const int64_t end = parameter.offset + parameter.elements;
    unit_.flat_elements = (end + kBlockElements - 1) / kBlockElements * kBlockElements;
    unit_.parameter_elements += parameter.elements;
    unit_.parameters.push_back(std::move(parameter));
    return *this;
  }

  UnitSpec unit_;
};

const char* TableName(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? "transformer.wte.weight"
                                             : "model.embed_tokens.weight";
}

UnitSpec Embedding(const ModelSpec& model) {
  UnitBuilder unit(UnitKind::kEmbedding, -1);
  if (!model.tie_embeddings) {
    unit.Matrix(TableName(model.architecture), model.vocab_size, model.hidden_size);
  }
  if (model.architecture == Architecture::kGpt2) {
    unit.Matrix("transformer.wpe.weight", model.max_sequence_length, model.hidden_size);
  }
  return unit.Build();
}

UnitSpec Gpt2Block(const ModelSpec& model, int64_t layer) {
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(model.num_layers));
  const std::string prefix = absl::StrCat("transformer.h.", layer, ".");
  return UnitBuilder(UnitKind::kBlock, layer)
      .Ones(prefix + "ln_1.weight", hidden)
      .Zeros(prefix + "ln_1.bias", hidden)
      .Matrix(prefix + "attn.c_attn.weight", hidden, 3 * hidden)
      .Zeros(prefix + "attn.c_attn.bias", 3 * hidden)
      .Matrix(prefix + "attn.c_proj.weight", hidden, hidden, residual_std)
      .Zeros(prefix + "attn.c_proj.bias", hidden)
      .Ones(prefix + "ln_2.weight", hidden)
      .Zeros(prefix + "ln_2.bias", hidden)
      .Matrix(prefix + "mlp.c_fc.weight", hidden, inner)
      .Zeros(prefix + "mlp.c_fc.bias", inner)
      .Matrix(prefix + "mlp.c_proj.weight", inner, hidden, residual_std)
      .Zeros(prefix + "mlp.c_proj.bias", hidden)
      .Build();
}

UnitSpec LlamaBlock(const ModelSpec& model, int64_t layer) {
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  const int64_t kv = model.num_kv_heads * model.head_size();
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  return UnitBuilder(UnitKind::kBlock, layer)
      .Ones(prefix + "input_layernorm.weight", hidden)
      .Matrix(prefix + "self_attn.q_proj.weight", hidden, hidden)
      .Matrix(prefix + "self_attn.k_proj.weight", kv, hidden)
      .Matrix(prefix + "self_attn.v_proj.weight", kv, hidden)
      .Matrix(prefix + "self_attn.o_proj.weight", hidden, hidden)
      .Ones(prefix + "post_attention_layernorm.weight", hidden)
      .Matrix(prefix + "mlp.gate_proj.weight", inner, hidden)
      .Matrix(prefix + "mlp.up_proj.weight", inner, hidden)
      .Matrix(prefix + "mlp.down_proj.weight", hidden, inner)
      .Build();
}

UnitSpec Head(const ModelSpec& model) {
  UnitBuilder unit(UnitKind::kHead, -1);
  if (model.architecture == Architecture::kGpt2) {
    unit.Ones("transformer.ln_f.weight", model.hidden_size);
    unit.Zeros("transformer.ln_f.bias", model.hidden_size);
  } else {
    unit.Ones("model.norm.weight", model.hidden_size);
  }
  if (!model.tie_embeddings) {
    unit.Matrix("lm_head.weight", model.vocab_size, model.hidden_size);
  }
  return unit.Build();
}

UnitSpec TiedTable(const ModelSpec& model, int owner) {
  UnitSpec unit = UnitBuilder(UnitKind::kTied, -1)
                      .Matrix(TableName(model.architecture), model.vocab_size, model.hidden_size)
                      .Build();
  unit.owner = owner;
  return unit;
}

}  // namespace

std::vector<UnitSpec> MakeUnits(const ModelSpec& model) {
  std::vector<UnitSpec> units;
  units.push_back(Embedding(model));
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    units.push_back(model.architecture == Architecture::kGpt2 ? Gpt2Block(model, layer)
                                                              : LlamaBlock(model, layer));
  }
  units.push_back(Head(model));
  for (int unit = 0; unit < NumComputeUnits(model); ++unit) {
    units[static_cast<size_t>(unit)].uses = {unit};
  }
  if (model.tie_embeddings) {
    units.front().uses.push_back(TiedEmbeddingEnd(model));
    units.back().uses.push_back(TiedHeadEnd(model));
    units.push_back(TiedTable(model, -1));
    units.push_back(TiedTable(model, TiedEmbeddingEnd(model)));
  }
  return units;
}

int64_t CountParameters(const ModelSpec& model) {
  int64_t count = 0;
  for (const UnitSpec& unit : MakeUnits(model)) {
    if (unit.owner < 0) count += unit.parameter_elements;
  }
  return count;
}

double ModelFlopsPerToken(const ModelSpec& model, int64_t sequence_length) {
  // The table multiplies once, in the head; the embedding and the positions are looked up.
  double weights = static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden_size);
  for (const UnitSpec& unit : MakeUnits(model)) {
    if (unit.kind != UnitKind::kBlock) continue;
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.shape.size() == 2) weights += static_cast<double>(parameter.elements);
    }
  }
  const double attention = 12.0 * static_cast<double>(model.num_layers) *
                           static_cast<double>(model.hidden_size) *
                           static_cast<double>(sequence_length) / 2.0;
  return 6.0 * weights + attention;
}

int64_t BytesOf(Precision precision) { return precision == Precision::kFp32 ? 4 : 2; }

const char* ArchitectureName(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? "gpt2" : "llama";
}

const char* PrecisionName(Precision precision) {
  return precision == Precision::kFp32 ? "fp32" : "bf16";
}

const char* NumericsName(Numerics numerics) {
  return numerics == Numerics::kFast ? "fast" : "exact";
}

const char* GradientTrafficName(GradientTraffic traffic) {
  return traffic == GradientTraffic::kFull ? "full" : "bf16";
}

absl::StatusOr<Architecture> ParseArchitecture(const std::string& name) {
  if (name == "gpt2") return Architecture::kGpt2;
  if (name == "llama") return Architecture::kLlama;
  return absl::InvalidArgumentError(
      absl::StrCat("architecture \"", name, "\" is not built in; use gpt2 or llama"));
}

absl::StatusOr<Precision> ParsePrecision(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "bf16") return Precision::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("precision \"", name, "\" does not exist; use fp32 or bf16"));
}

absl::StatusOr<Numerics> ParseNumerics(const std::string& name) {
  if (name == "fast") return Numerics::kFast;
  if (name == "exact") return Numerics::kExact;
  return absl::InvalidArgumentError(
      absl::StrCat("numerics \"", name, "\" does not exist; use fast or exact"));
}

absl::StatusOr<GradientTraffic> ParseGradientTraffic(const std::string& name) {
  if (name == "full") return GradientTraffic::kFull;
  if (name == "bf16") return GradientTraffic::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("gradient_traffic \"", name, "\" does not exist; use full or bf16"));
}

}  // namespace esteira
