#include "worker/model/llama_block.h"

// Legend: N tokens, H hidden size (all query heads), K width of keys and of values, I intermediate
// size, Q query heads.

namespace esteira {
namespace {

Linear OutIn(const UnitSpec& unit, const std::string& name) {
  return {ParameterView::Find(unit, name + ".weight"), ParameterView{}, WeightLayout::kOutIn};
}

int64_t KeyWidth(const ModelSpec& model) { return model.num_kv_heads * model.head_size(); }

Kernels::Strided Whole(Tensor x) { return {x, x.columns}; }

}  // namespace

struct LlamaBlock::Activations {
  Norm::Statistics statistics1;
  Tensor q_NH;
  Tensor k_NK;
  Tensor v_NK;
  Tensor attention_NH;
  Tensor log_sum_exp_NQ;
  Tensor residual_NH;
  Norm::Statistics statistics2;
  Tensor gate_NI;
  Tensor up_NI;
  Tensor product_NI;
};

LlamaBlock::LlamaBlock(const ModelSpec& model, const UnitSpec& unit, Precision precision)
    : model_(model),
      buffers_(model, unit, precision),
      norm1_(model, unit, "input_layernorm"),
      q_(OutIn(unit, "q_proj")),
      k_(OutIn(unit, "k_proj")),
      v_(OutIn(unit, "v_proj")),
      output_(OutIn(unit, "o_proj")),
      norm2_(model, unit, "post_attention_layernorm"),
      gate_(OutIn(unit, "gate_proj")),
      up_(OutIn(unit, "up_proj")),
      down_(OutIn(unit, "down_proj")) {}

void LlamaBlock::Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  std::byte* parameters = arguments.parameters;
  const Activations kept = arguments.saved == nullptr ? InWorkspace(arguments) : InSaved(arguments);
  const Tensor narrow_NH = buffers_.Workspace(arguments).View(
      "narrow", arguments.batch * arguments.sequence, model_.hidden_size);

  ForwardAttention(arguments, kept, backend);
  norm2_.Forward(kept.residual_NH, parameters, narrow_NH, kept.statistics2, backend);
  gate_.Forward(narrow_NH, parameters, kept.gate_NI, backend);
  up_.Forward(narrow_NH, parameters, kept.up_NI, backend);
  kernels.SwiGluForward(kept.gate_NI, kept.up_NI, kept.product_NI, stream);
  if (arguments.y.data == nullptr) return;
  down_.Forward(kept.product_NI, parameters, narrow_NH, backend);
  Dropped(narrow_NH, arguments, 1, narrow_NH, backend);
  kernels.Add(narrow_NH, kept.residual_NH, arguments.y, stream);
}

void LlamaBlock::ForwardAttention(const UnitArguments& arguments, const Activations& kept,
                                  const Backend& backend) const {
  auto& [kernels, stream] = backend;
  std::byte* parameters = arguments.parameters;
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices workspace = buffers_.Workspace(arguments);
  const Tensor narrow_NH = workspace.View("narrow", tokens_N, model_.hidden_size);

  norm1_.Forward(arguments.x, parameters, narrow_NH, kept.statistics1, backend);
  q_.Forward(narrow_NH, parameters, kept.q_NH, backend);
  k_.Forward(narrow_NH, parameters, kept.k_NK, backend);
  v_.Forward(narrow_NH, parameters, kept.v_NK, backend);
  for (const Tensor& x : {kept.q_NH, kept.k_NK}) {
    kernels.Rope(x, arguments.sequence, model_.head_size(), model_.rope_theta, /*inverse=*/false,
                 stream);
  }
  kernels.AttentionForward(ShapeOfAttention(model_, arguments), Whole(kept.q_NH), Whole(kept.k_NK),
                           Whole(kept.v_NK), kept.attention_NH, kept.log_sum_exp_NQ,
                           AttentionScratch(model_, workspace, arguments), stream);
  output_.Forward(kept.attention_NH, parameters, kept.residual_NH, backend);
  Dropped(kept.residual_NH, arguments, 0, kept.residual_NH, backend);
  kernels.Add(kept.residual_NH, arguments.x, kept.residual_NH, stream);
}

void LlamaBlock::BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                               Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const Activations kept = InSaved(arguments);
  BackwardMlp(arguments, kept, backend);
  BackwardAttention(arguments, kept, backend);
}

// dy -> d_residual
void LlamaBlock::BackwardMlp(const UnitArguments& arguments, const Activations& kept,
                             const Backend& backend) const {
  auto& [kernels, stream] = backend;
  std::byte* parameters = arguments.parameters;
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Slices workspace = buffers_.Workspace(arguments);
  const Tensor d_norm_NH = workspace.View("narrow", tokens_N, model_.hidden_size);
  const Tensor d_norm_of_up_NH = workspace.View("narrow_b", tokens_N, model_.hidden_size);
  const Tensor d_residual_NH = saved.View("d_residual", tokens_N, model_.hidden_size);

  const Tensor d_product_NI = workspace.View("wide_a", tokens_N, model_.intermediate_size);
  down_.BackwardInput(Dropped(arguments.dy, arguments, 1, d_norm_NH, backend), parameters,
                      d_product_NI, backend);
  kernels.SwiGluBackward(d_product_NI, kept.gate_NI, kept.up_NI, kept.gate_NI, kept.up_NI, stream);
  gate_.BackwardInput(kept.gate_NI, parameters, d_norm_NH, backend);
  up_.BackwardInput(kept.up_NI, parameters, d_norm_of_up_NH, backend);
  kernels.Add(d_norm_NH, d_norm_of_up_NH, d_norm_NH, stream);
  norm2_.BackwardInput(d_norm_NH, kept.residual_NH, parameters, kept.statistics2, d_residual_NH,
                       norm2_.Partial(saved, "norm2_gradient"), backend);
  kernels.Add(d_residual_NH, arguments.dy, d_residual_NH, stream);
}

// d_residual -> dx
void LlamaBlock::BackwardAttention(const UnitArguments& arguments, const Activations& kept,
                                   const Backend& backend) const {
  auto& [kernels, stream] = backend;
  std::byte* parameters = arguments.parameters;
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Slices workspace = buffers_.Workspace(arguments);
  const Tensor narrow_NH = workspace.View("narrow", tokens_N, model_.hidden_size);
  const Tensor d_residual_NH = saved.View("d_residual", tokens_N, model_.hidden_size);

  const Tensor d_branch_NH = workspace.View("narrow_b", tokens_N, model_.hidden_size);
  output_.BackwardInput(Dropped(d_residual_NH, arguments, 0, d_branch_NH, backend), parameters,
                        narrow_NH, backend);
  const Kernels::Strided q = Whole(kept.q_NH);
  const Kernels::Strided k = Whole(kept.k_NK);
  const Kernels::Strided v = Whole(kept.v_NK);
  kernels.AttentionBackward(ShapeOfAttention(model_, arguments), narrow_NH, q, k, v,
                            kept.attention_NH, kept.log_sum_exp_NQ, q, k, v,
                            AttentionScratch(model_, workspace, arguments), stream);
  for (const Tensor& dx : {kept.q_NH, kept.k_NK}) {
    kernels.Rope(dx, arguments.sequence, model_.head_size(), model_.rope_theta, /*inverse=*/true,
                 stream);
  }

  const Tensor term_NH = workspace.View("narrow_b", tokens_N, model_.hidden_size);
  q_.BackwardInput(kept.q_NH, parameters, narrow_NH, backend);
  k_.BackwardInput(kept.k_NK, parameters, term_NH, backend);
  kernels.Add(narrow_NH, term_NH, narrow_NH, stream);
  v_.BackwardInput(kept.v_NK, parameters, term_NH, backend);
  kernels.Add(narrow_NH, term_NH, narrow_NH, stream);
  norm1_.BackwardInput(narrow_NH, arguments.x, parameters, kept.statistics1, arguments.dx,
                       norm1_.Partial(saved, "norm1_gradient"), backend);
  kernels.Add(arguments.dx, d_residual_NH, arguments.dx, stream);
}

void LlamaBlock::BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                                Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const auto gradients = GradientWindow::Of(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Activations kept = InSaved(arguments);
  const Tensor narrow_NH =
      buffers_.Workspace(arguments).View("narrow", tokens_N, model_.hidden_size);

  down_.BackwardWeight(kept.product_NI, Dropped(arguments.dy, arguments, 1, narrow_NH, backend),
                       gradients, backend);
  norm2_.Forward(kept.residual_NH, arguments.parameters, narrow_NH, kept.statistics2, backend);
  gate_.BackwardWeight(narrow_NH, kept.gate_NI, gradients, backend);
  up_.BackwardWeight(narrow_NH, kept.up_NI, gradients, backend);
  norm2_.BackwardWeight(norm2_.Partial(saved, "norm2_gradient"), gradients, backend);

  const Tensor d_residual_NH = saved.View("d_residual", tokens_N, model_.hidden_size);
  output_.BackwardWeight(kept.attention_NH,
                         Dropped(d_residual_NH, arguments, 0, narrow_NH, backend), gradients,
                         backend);
  norm1_.Forward(arguments.x, arguments.parameters, narrow_NH, kept.statistics1, backend);
  q_.BackwardWeight(narrow_NH, kept.q_NH, gradients, backend);
  k_.BackwardWeight(narrow_NH, kept.k_NK, gradients, backend);
  v_.BackwardWeight(narrow_NH, kept.v_NK, gradients, backend);
  norm1_.BackwardWeight(norm1_.Partial(saved, "norm1_gradient"), gradients, backend);
}

LlamaBlock::Activations LlamaBlock::InSaved(const UnitArguments& arguments) const {
  const Slices saved = buffers_.Saved(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const int64_t hidden = model_.hidden_size;
  const int64_t inner = model_.intermediate_size;
  return {.statistics1 = {{}, saved.View("rstd1", tokens_N, 1)},
          .q_NH = saved.View("q", tokens_N, hidden),
          .k_NK = saved.View("k", tokens_N, KeyWidth(model_)),
          .v_NK = saved.View("v", tokens_N, KeyWidth(model_)),
          .attention_NH = saved.View("attention", tokens_N, hidden),
          .log_sum_exp_NQ = saved.View("log_sum_exp", tokens_N, model_.num_heads),
          .residual_NH = saved.View("residual", tokens_N, hidden),
          .statistics2 = {{}, saved.View("rstd2", tokens_N, 1)},
          .gate_NI = saved.View("gate", tokens_N, inner),
          .up_NI = saved.View("up", tokens_N, inner),
          .product_NI = saved.View("product", tokens_N, inner)};
}

// Shared by tensors that are never live at once. The residual is formed in y, where it is needed
// last.
LlamaBlock::Activations LlamaBlock::InWorkspace(const UnitArguments& arguments) const {
  const Slices workspace = buffers_.Workspace(arguments);
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const int64_t hidden = model_.hidden_size;
  const int64_t inner = model_.intermediate_size;
  const Norm::Statistics statistics = {{}, workspace.View("rstd", tokens_N, 1)};
  return {.statistics1 = statistics,
          .q_NH = workspace.View("wide_a", tokens_N, hidden),
          .k_NK = workspace.View("wide_b", tokens_N, KeyWidth(model_)),
          .v_NK = workspace.View("wide_c", tokens_N, KeyWidth(model_)),
          .attention_NH = workspace.View("narrow", tokens_N, hidden),
          .log_sum_exp_NQ = workspace.View("log_sum_exp", tokens_N, model_.num_heads),
          .residual_NH = arguments.y,
          .statistics2 = statistics,
          .gate_NI = workspace.View("wide_a", tokens_N, inner),
          .up_NI = workspace.View("wide_b", tokens_N, inner),
          .product_NI = workspace.View("wide_c", tokens_N, inner)};
}

}  // namespace esteira
