#include "worker/model/head.h"

#include <algorithm>

// Legend: N tokens, H hidden size, V vocabulary, C rows of logits at once.

namespace esteira {

static_assert(sizeof(LossSums) == kLossSumsBytes);

namespace {

ParameterView Table(const ModelSpec& model, const UnitSpec& unit) {
  return model.tie_embeddings ? ParameterView::TiedTable(model)
                              : ParameterView::Find(unit, "lm_head.weight");
}

}  // namespace

Head::Head(const ModelSpec& model, const UnitSpec& unit, Precision precision)
    : model_(model),
      buffers_(model, unit, precision),
      norm_(model, unit, model.architecture == Architecture::kGpt2 ? "ln_f" : "norm"),
      table_(Table(model, unit), ParameterView{}, WeightLayout::kOutIn) {}

void Head::Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const bool keep = arguments.saved != nullptr;
  const Slices workspace = buffers_.Workspace(arguments);
  const Slices kept = keep ? buffers_.Saved(arguments) : workspace;

  LossSums* loss = arguments.loss;
  if (loss == nullptr) {
    const Tensor unread = workspace.View("loss", 1, kLossSumsBytes);
    kernels.Zero(unread, stream);
    loss = unread.as<LossSums>();
  }
  const Tensor norm_NH = workspace.View("norm", tokens_N, model_.hidden_size);
  norm_.Forward(arguments.x, arguments.parameters, norm_NH, StatisticsIn(kept, tokens_N), backend);
  const int64_t rows_C = HeadRowsAtOnce(arguments.sequence);
  for (int64_t start = 0; start < tokens_N; start += arguments.sequence) {
    for (int64_t row = 0; row < arguments.sequence; row += rows_C) {
      const int64_t begin = start + row;
      const int64_t count = std::min(rows_C, arguments.sequence - row);
      const Tensor logits_CV =
          keep ? RowsOf(kept.View("logits", tokens_N, model_.vocab_size), begin, count)
               : kept.View("logits", count, model_.vocab_size);
      table_.Forward(RowsOf(norm_NH, begin, count),
                     model_.tie_embeddings ? arguments.tied_parameters : arguments.parameters,
                     logits_CV, backend);
      Score(arguments, logits_CV, RowsOf(arguments.targets, begin, count), loss, backend);
    }
  }
}

void Head::BackwardInput(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Tensor d_norm_NH = buffers_.Workspace(arguments).View("norm", tokens_N, model_.hidden_size);
  table_.BackwardInput(saved.View("logits", tokens_N, model_.vocab_size),
                       model_.tie_embeddings ? arguments.tied_parameters : arguments.parameters,
                       d_norm_NH, backend);
  norm_.BackwardInput(d_norm_NH, arguments.x, arguments.parameters, StatisticsIn(saved, tokens_N),
                      arguments.dx, norm_.Partial(saved, "norm_gradient"), backend);
}

void Head::BackwardWeight(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
  if (arguments.batch == 0) return;
  const Backend backend{kernels, stream};
  const int64_t tokens_N = arguments.batch * arguments.sequence;
  const Slices saved = buffers_.Saved(arguments);
  const Tensor norm_NH = buffers_.Workspace(arguments).View("norm", tokens_N, model_.hidden_size);
  norm_.Forward(arguments.x, arguments.parameters, norm_NH, StatisticsIn(saved, tokens_N), backend);
  table_.BackwardWeight(
      norm_NH, saved.View("logits", tokens_N, model_.vocab_size),
      model_.tie_embeddings ? GradientWindow::OfTied(arguments) : GradientWindow::Of(arguments),
      backend);
  norm_.BackwardWeight(norm_.Partial(saved, "norm_gradient"), GradientWindow::Of(arguments),
                       backend);
}

Norm::Statistics Head::StatisticsIn(const Slices& slices, int64_t tokens_N) const {
  const Tensor rstd_N = slices.View("rstd", tokens_N, 1);
  if (model_.architecture == Architecture::kLlama) return {{}, rstd_N};
  return {slices.View("mean", tokens_N, 1), rstd_N};
}

void Head::Score(const UnitArguments& arguments, Tensor logits, Tensor targets, LossSums* loss,
                 const Backend& backend) const {
  if (arguments.evaluate) {
    backend.kernels.CrossEntropyLoss(logits, targets, loss, backend.stream);
  } else {
    backend.kernels.CrossEntropy(logits, targets, loss, backend.stream);
  }
}

}  // namespace esteira
