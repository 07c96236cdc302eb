#include "common/plan/sizes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"

// Legend: N tokens, H hidden size, I intermediate size, K width of keys (values), Q query heads, V
// vocabulary.

namespace esteira {
namespace {

constexpr int64_t kAlignmentBytes = 64;
constexpr int64_t kAttentionPairsAtOnce = 16;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// Lays tensors out one after the other, in the order of the calls.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(ElementType compute_type) : compute_type_(compute_type) {}

  LayoutBuilder& Activation(const char* name, int64_t elements) {
    return Add(name, compute_type_, elements);
  }
  LayoutBuilder& Fp32(const char* name, int64_t elements) {
    return Add(name, ElementType::kFp32, elements);
  }
  // RMSNorm has no mean.
  LayoutBuilder& Statistics(Architecture architecture, int64_t rows) {
    if (architecture == Architecture::kGpt2) Fp32("mean", rows);
    return Fp32("rstd", rows);
  }
  LayoutBuilder& Add(const char* name, ElementType type, int64_t elements) {
    layout_.slices.push_back({name, type, elements, layout_.bytes});
    layout_.bytes += Aligned(elements * BytesOf(type));
    return *this;
  }
  BufferLayout Build() { return std::move(layout_); }

 private:
  ElementType compute_type_;
  BufferLayout layout_;
};

// LayerNorm has a weight and a bias, RMSNorm a weight.
int64_t NormVectors(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? 2 : 1;
}

int64_t KeyWidth(const ModelSpec& model) { return model.num_kv_heads * model.head_size(); }

BufferLayout SavedByGpt2Block(const ModelSpec& model, int64_t tokens_N, ElementType type) {
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  return LayoutBuilder(type)
      .Fp32("mean1", tokens_N)
      .Fp32("rstd1", tokens_N)
      .Activation("qkv", tokens_N * 3 * hidden)
      .Activation("attention", tokens_N * hidden)
      .Fp32("log_sum_exp", tokens_N * model.num_heads)
      .Activation("residual", tokens_N * hidden)
      .Fp32("mean2", tokens_N)
      .Fp32("rstd2", tokens_N)
      .Activation("inner", tokens_N * inner)
      .Activation("gelu", tokens_N * inner)
      .Activation("d_residual", tokens_N * hidden)
      .Fp32("norm1_gradient", 2 * hidden)
      .Fp32("norm2_gradient", 2 * hidden)
      .Build();
}

BufferLayout SavedByLlamaBlock(const ModelSpec& model, int64_t tokens_N, ElementType type) {
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  return LayoutBuilder(type)
      .Fp32("rstd1", tokens_N)
      .Activation("q", tokens_N * hidden)
      .Activation("k", tokens_N * KeyWidth(model))
      .Activation("v", tokens_N * KeyWidth(model))
      .Activation("attention", tokens_N * hidden)
      .Fp32("log_sum_exp", tokens_N * model.num_heads)
      .Activation("residual", tokens_N * hidden)
      .Fp32("rstd2", tokens_N)
      .Activation("gate", tokens_N * inner)
      .Activation("up", tokens_N * inner)
      .Activation("product", tokens_N * inner)
      .Activation("d_residual", tokens_N * hidden)
      .Fp32("norm1_gradient", hidden)
      .Fp32("norm2_gradient", hidden)
      .Build();
}

BufferLayout SavedByHead(const ModelSpec& model, int64_t tokens_N, ElementType type) {
  return LayoutBuilder(type)
      .Statistics(model.architecture, tokens_N)
      .Activation("logits", tokens_N * model.vocab_size)
      .Fp32("norm_gradient", NormVectors(model.architecture) * model.hidden_size)
      .Build();
}

// The wide tensors hold q, k, v or their gradients first, then the tensors between the two MLP
// layers.
BufferLayout WorkspaceOfBlock(const ModelSpec& model, int64_t batch, int64_t sequence,
                              ElementType type) {
  const int64_t tokens_N = batch * sequence;
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  LayoutBuilder layout(type);
  if (model.architecture == Architecture::kGpt2) {
    layout.Activation("wide_a", tokens_N * std::max(3 * hidden, inner))
        .Activation("wide_b", tokens_N * std::max(hidden, inner));
  } else {
    layout.Activation("wide_a", tokens_N * std::max(hidden, inner))
        .Activation("wide_b", tokens_N * std::max(KeyWidth(model), inner))
        .Activation("wide_c", tokens_N * std::max(KeyWidth(model), inner))
        .Activation("narrow_b", tokens_N * hidden);
  }
  return layout.Activation("narrow", tokens_N * hidden)
      .Statistics(model.architecture, tokens_N)
      .Fp32("log_sum_exp", tokens_N * model.num_heads)
      .Fp32("attention",
            AttentionWorkspaceElements(batch, sequence, model.num_kv_heads, model.head_size()))
      .Build();
}

BufferLayout WorkspaceOfHead(const ModelSpec& model, int64_t batch, int64_t sequence,
                             ElementType type) {
  const int64_t tokens_N = batch * sequence;
  return LayoutBuilder(type)
      .Activation("norm", tokens_N * model.hidden_size)
      .Statistics(model.architecture, tokens_N)
      .Activation("logits", std::min(tokens_N, HeadRowsAtOnce(sequence)) * model.vocab_size)
      .Add("loss", ElementType::kByte, kLossSumsBytes)
      .Build();
}

double MatrixElements(const ModelSpec& model, const UnitSpec& unit) {
  if (unit.kind == UnitKind::kHead) {
    return static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden_size);
  }
  double elements = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (parameter.shape.size() == 2) elements += static_cast<double>(parameter.elements);
  }
  return elements;
}

// One of the products of attention over the whole [T,T] square: 2 * T * T * D by sequence and head.
double AttentionProductFlops(const ModelSpec& model, double tokens_N, int64_t sequence) {
  return 2 * tokens_N * static_cast<double>(sequence) * static_cast<double>(model.hidden_size);
}

enum class Pass { kForward, kBackwardInput, kBackwardWeight };

double Flops(const ModelSpec& model, const UnitSpec& unit, int64_t batch, int64_t sequence,
             Pass pass) {
  const double tokens_N = static_cast<double>(batch) * static_cast<double>(sequence);
  switch (unit.kind) {
    case UnitKind::kEmbedding:
      // A look-up: an addition an element, each way.
      return pass == Pass::kBackwardInput ? 0 : tokens_N * static_cast<double>(model.hidden_size);
    case UnitKind::kBlock: {
      // Half the square is masked. Forward: two products. Backward: five, scores are formed again.
      const double products = pass == Pass::kForward ? 2 : pass == Pass::kBackwardInput ? 5 : 0;
      return 2 * tokens_N * MatrixElements(model, unit) +
             products / 2 * AttentionProductFlops(model, tokens_N, sequence);
    }
    case UnitKind::kHead: return 2 * tokens_N * MatrixElements(model, unit);
    case UnitKind::kTied: return 0;
  }
  return 0;
}

}  // namespace

int64_t BytesOf(ElementType type) {
  switch (type) {
    case ElementType::kFp32: return 4;
    case ElementType::kBf16: return 2;
    case ElementType::kInt32: return 4;
    case ElementType::kInt64: return 8;
    case ElementType::kByte: return 1;
  }
  return 0;
}

ElementType ComputeType(Precision precision) {
  return precision == Precision::kFp32 ? ElementType::kFp32 : ElementType::kBf16;
}

ElementType SumType(Numerics numerics) {
  return numerics == Numerics::kFast ? ElementType::kFp32 : ElementType::kInt64;
}

int64_t SlotBytes(const ModelSpec& model, const Layout& layout, Precision precision,
                  const UnitSpec& unit, SlotKind kind) {
  const int64_t padded = ShardMap(unit.flat_elements, layout.replicas).padded_elements();
  switch (kind) {
    case SlotKind::kActivation:
    case SlotKind::kGradient:
      return Aligned(layout.micro_batch_size * layout.sequence_length * model.hidden_size *
                     BytesOf(precision));
    case SlotKind::kSaved:
      if (unit.kind == UnitKind::kTied) return 0;
      return SavedLayout(model, unit, layout.micro_batch_size, layout.sequence_length, precision)
          .bytes;
    case SlotKind::kParameters: return padded * BytesOf(precision);
    case SlotKind::kWindow: return padded * BytesOf(SumType(layout.numerics));
  }
  return 0;
}

ElementType TrafficType(const Layout& layout) {
  return layout.gradient_traffic == GradientTraffic::kBf16 ? ElementType::kBf16
                                                           : SumType(layout.numerics);
}

const TensorSlice& BufferLayout::Find(const char* name) const {
  const auto slice = std::find_if(slices.begin(), slices.end(), [name](const TensorSlice& other) {
    return absl::string_view(other.name) == name;
  });
  CHECK(slice != slices.end());
  return *slice;
}

BufferLayout SavedLayout(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                         int64_t sequence, Precision precision) {
  const int64_t tokens_N = batch * sequence;
  const ElementType type = ComputeType(precision);
  switch (unit.kind) {
    case UnitKind::kBlock:
      return model.architecture == Architecture::kGpt2 ? SavedByGpt2Block(model, tokens_N, type)
                                                       : SavedByLlamaBlock(model, tokens_N, type);
    case UnitKind::kHead: return SavedByHead(model, tokens_N, type);
    case UnitKind::kEmbedding:
    case UnitKind::kTied: return {};
  }
  return {};
}

BufferLayout WorkspaceLayout(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                             int64_t sequence, Precision precision) {
  const ElementType type = ComputeType(precision);
  switch (unit.kind) {
    case UnitKind::kBlock: return WorkspaceOfBlock(model, batch, sequence, type);
    case UnitKind::kHead: return WorkspaceOfHead(model, batch, sequence, type);
    case UnitKind::kEmbedding:
    case UnitKind::kTied: return {};
  }
  return {};
}

int64_t HeadRowsAtOnce(int64_t sequence) { return std::min<int64_t>(sequence, 256); }

int64_t AttentionWorkspaceElements(int64_t batch, int64_t sequence, int64_t num_kv_heads,
                                   int64_t head_size) {
  return std::min(batch * num_kv_heads, kAttentionPairsAtOnce) * 3 * sequence * head_size;
}

int64_t ReduceScratchBytes(int64_t padded_elements, int replicas, Numerics numerics) {
  return replicas == 1 ? 0 : padded_elements * BytesOf(SumType(numerics));
}

double ForwardFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch, int64_t sequence) {
  return Flops(model, unit, batch, sequence, Pass::kForward);
}

double BackwardInputFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                          int64_t sequence) {
  return Flops(model, unit, batch, sequence, Pass::kBackwardInput);
}

double BackwardWeightFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                           int64_t sequence) {
  return Flops(model, unit, batch, sequence, Pass::kBackwardWeight);
}

}  // namespace esteira
