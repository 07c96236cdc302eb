#include "worker/model/embedding.h"

// Legend: N tokens, T positions, V vocabulary, H hidden size.

namespace esteira {

Embedding::Embedding(const ModelSpec& model, const UnitSpec& unit) : tied_(model.tie_embeddings) {
  const bool gpt2 = model.architecture == Architecture::kGpt2;
  table_ = tied_ ? ParameterView::TiedTable(model)
                 : ParameterView::Find(unit, gpt2 ? "wte.weight" : "embed_tokens.weight");
  if (gpt2) positions_ = ParameterView::Find(unit, "wpe.weight");
}

void Embedding::Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0 || arguments.y.data == nullptr) return;
  const ElementType type = arguments.y.type;
  const Tensor table_VH = table_.In(tied_ ? arguments.tied_parameters : arguments.parameters, type);
  kernels.EmbeddingForward(arguments.tokens, table_VH, positions_.In(arguments.parameters, type),
                           arguments.sequence, arguments.y, stream);
  Dropped(arguments.y, arguments, 0, arguments.y, {kernels, stream});
}

void Embedding::BackwardInput(const UnitArguments&, Kernels&, Stream&) const {}

void Embedding::BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                               Stream& stream) const {
  if (arguments.batch == 0) return;
  const auto own = GradientWindow::Of(arguments);
  const GradientWindow of_table = tied_ ? GradientWindow::OfTied(arguments) : own;
  const Tensor dtable_VH = table_.In(of_table);
  const Tensor dpositions_TH = positions_.In(own);
  // Only rows of tokens and positions of the micro-batch are added to.
  if (of_table.sum == GradientSum::kBegins) kernels.Zero(dtable_VH, stream);
  if (positions_.present() && own.sum == GradientSum::kBegins) kernels.Zero(dpositions_TH, stream);
  // Nobody reads dy after the embedding.
  const Tensor dy_NH = Dropped(arguments.dy, arguments, 0, arguments.dy, {kernels, stream});
  kernels.EmbeddingBackward(dy_NH, arguments.tokens, arguments.sequence, dtable_VH, dpositions_TH,
                            stream);
}

}  // namespace esteira
