#include "worker/model/gpt2_block.h"

// Legend: N tokens, H hidden size, I intermediate size, 3H queries, keys and values side by side, Q
// heads.

namespace esteira {
namespace {

Linear InOut(const UnitSpec& unit, const std::string& name) {
  return {ParameterView::Find(unit, name + ".weight"), ParameterView::Find(unit, name + ".bias"),
          WeightLayout::kInOut};
}

// Columns [part * H, (part + 1) * H) of a [N, 3H] matrix.
Kernels::Strided Part(Tensor qkv, int64_t part) {
  const int64_t hidden = qkv.columns / 3;
  return {{qkv.data + part * hidden * BytesOf(qkv.type), qkv.type, qkv.rows, hidden}, qkv.columns};
}

}  // namespace

struct Gpt2Block::Activations {
  Norm::Statistics statistics1;
  Tensor qkv;
  Tensor attention_NH;
  Tensor log_sum_exp_NQ;
  Tensor residual_NH;
  Norm::Statistics statistics2;
  Tensor inner_NI;
  Tensor gelu_NI;
};

Gpt2Block::Gpt2Block(const ModelSpec& model, const UnitSpec& unit, Precision precision)
    : model_(model),
      buffers_(model, unit, precision),
      norm1_(model, unit, "ln_1"),
      qkv_(InOut(unit, "attn.c_attn")),
      attention_projection_(InOut(unit, "attn.c_proj")),
      norm2_(model, unit, "ln_2"),
      inner_(InOut(unit, "mlp.c_fc")),
      projection_(InOut(unit, "mlp.c_proj")) {}

void Gpt2Block::Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  std::byte* parameters = arguments.parameters;
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices workspace = buffers_.Workspace(arguments);
  const Activations kept = arguments.saved == nullptr ? InWorkspace(arguments) : InSaved(arguments);
  // Each line that writes it comes after the last that read what it held.
  const Tensor narrow_NH = workspace.View("narrow", tokens_N, model_.hidden_size);

  norm1_.Forward(arguments.x, parameters, narrow_NH, kept.statistics1, backend);
  qkv_.Forward(narrow_NH, parameters, kept.qkv, backend);
  kernels.AttentionForward(ShapeOfAttention(model_, arguments), Part(kept.qkv, 0),
                           Part(kept.qkv, 1), Part(kept.qkv, 2), kept.attention_NH,
                           kept.log_sum_exp_NQ, AttentionScratch(model_, workspace, arguments),
                           stream);
  attention_projection_.Forward(kept.attention_NH, parameters, kept.residual_NH, backend);
  Dropped(kept.residual_NH, arguments, 0, kept.residual_NH, backend);
  kernels.Add(kept.residual_NH, arguments.x, kept.residual_NH, stream);

  norm2_.Forward(kept.residual_NH, parameters, narrow_NH, kept.statistics2, backend);
  inner_.Forward(narrow_NH, parameters, kept.inner_NI, backend);
  kernels.GeluForward(kept.inner_NI, kept.gelu_NI, stream);
  if (arguments.y.data == nullptr) return;
  projection_.Forward(kept.gelu_NI, parameters, narrow_NH, backend);
  Dropped(narrow_NH, arguments, 1, narrow_NH, backend);
  kernels.Add(narrow_NH, kept.residual_NH, arguments.y, stream);
}

void Gpt2Block::BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                              Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  std::byte* parameters = arguments.parameters;
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Slices workspace = buffers_.Workspace(arguments);
  const Activations kept = InSaved(arguments);
  const Tensor narrow_NH = workspace.View("narrow", tokens_N, model_.hidden_size);
  const Tensor d_residual_NH = saved.View("d_residual", tokens_N, model_.hidden_size);

  const Tensor d_inner_NI = workspace.View("wide_a", tokens_N, model_.intermediate_size);
  projection_.BackwardInput(Dropped(arguments.dy, arguments, 1, narrow_NH, backend), parameters,
                            d_inner_NI, backend);
  kernels.GeluBackward(d_inner_NI, kept.inner_NI, kept.inner_NI, stream);
  inner_.BackwardInput(kept.inner_NI, parameters, narrow_NH, backend);
  norm2_.BackwardInput(narrow_NH, kept.residual_NH, parameters, kept.statistics2, d_residual_NH,
                       norm2_.Partial(saved, "norm2_gradient"), backend);
  kernels.Add(d_residual_NH, arguments.dy, d_residual_NH, stream);

  const Tensor d_branch_NH = workspace.View("wide_b", tokens_N, model_.hidden_size);
  attention_projection_.BackwardInput(Dropped(d_residual_NH, arguments, 0, d_branch_NH, backend),
                                      parameters, narrow_NH, backend);
  const Kernels::Strided q = Part(kept.qkv, 0);
  const Kernels::Strided k = Part(kept.qkv, 1);
  const Kernels::Strided v = Part(kept.qkv, 2);
  kernels.AttentionBackward(ShapeOfAttention(model_, arguments), narrow_NH, q, k, v,
                            kept.attention_NH, kept.log_sum_exp_NQ, q, k, v,
                            AttentionScratch(model_, workspace, arguments), stream);
  qkv_.BackwardInput(kept.qkv, parameters, narrow_NH, backend);
  norm1_.BackwardInput(narrow_NH, arguments.x, parameters, kept.statistics1, arguments.dx,
                       norm1_.Partial(saved, "norm1_gradient"), backend);
  kernels.Add(arguments.dx, d_residual_NH, arguments.dx, stream);
}

void Gpt2Block::BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                               Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const auto gradients = GradientWindow::Of(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Activations kept = InSaved(arguments);
  const Tensor narrow_NH =
      buffers_.Workspace(arguments).View("narrow", tokens_N, model_.hidden_size);

  projection_.BackwardWeight(kept.gelu_NI, Dropped(arguments.dy, arguments, 1, narrow_NH, backend),
                             gradients, backend);
  norm2_.Forward(kept.residual_NH, arguments.parameters, narrow_NH, kept.statistics2, backend);
  inner_.BackwardWeight(narrow_NH, kept.inner_NI, gradients, backend);
  norm2_.BackwardWeight(norm2_.Partial(saved, "norm2_gradient"), gradients, backend);

  const Tensor d_residual_NH = saved.View("d_residual", tokens_N, model_.hidden_size);
  attention_projection_.BackwardWeight(kept.attention_NH,
                                       Dropped(d_residual_NH, arguments, 0, narrow_NH, backend),
                                       gradients, backend);
  norm1_.Forward(arguments.x, arguments.parameters, narrow_NH, kept.statistics1, backend);
  qkv_.BackwardWeight(narrow_NH, kept.qkv, gradients, backend);
  norm1_.BackwardWeight(norm1_.Partial(saved, "norm1_gradient"), gradients, backend);
}

Gpt2Block::Activations Gpt2Block::InSaved(const UnitArguments& arguments) const {
  const Slices saved = buffers_.Saved(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const int64_t hidden = model_.hidden_size;
  const int64_t inner = model_.intermediate_size;
  return {.statistics1 = {saved.View("mean1", tokens_N, 1), saved.View("rstd1", tokens_N, 1)},
          .qkv = saved.View("qkv", tokens_N, 3 * hidden),
          .attention_NH = saved.View("attention", tokens_N, hidden),
          .log_sum_exp_NQ = saved.View("log_sum_exp", tokens_N, model_.num_heads),
          .residual_NH = saved.View("residual", tokens_N, hidden),
          .statistics2 = {saved.View("mean2", tokens_N, 1), saved.View("rstd2", tokens_N, 1)},
          .inner_NI = saved.View("inner", tokens_N, inner),
          .gelu_NI = saved.View("gelu", tokens_N, inner)};
}

// Shared by tensors that are never live at once. The residual is formed in y, where it is needed
// last.
Gpt2Block::Activations Gpt2Block::InWorkspace(const UnitArguments& arguments) const {
  const Slices workspace = buffers_.Workspace(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const int64_t hidden = model_.hidden_size;
  const int64_t inner = model_.intermediate_size;
  const Norm::Statistics statistics = {workspace.View("mean", tokens_N, 1),
                                       workspace.View("rstd", tokens_N, 1)};
  return {.statistics1 = statistics,
          .qkv = workspace.View("wide_a", tokens_N, 3 * hidden),
          .attention_NH = workspace.View("narrow", tokens_N, hidden),
          .log_sum_exp_NQ = workspace.View("log_sum_exp", tokens_N, model_.num_heads),
          .residual_NH = arguments.y,
          .statistics2 = statistics,
          .inner_NI = workspace.View("wide_a", tokens_N, inner),
          .gelu_NI = workspace.View("wide_b", tokens_N, inner)};
}

}  // namespace esteira
