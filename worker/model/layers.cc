#include "worker/model/layers.h"

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace esteira {

ParameterView ParameterView::Find(const UnitSpec& unit, const std::string& suffix) {
  for (const ParameterSpec& parameter : unit.parameters) {
    if (!absl::EndsWith(parameter.name, suffix)) continue;
    const int64_t rows = parameter.shape.size() == 2 ? parameter.shape[0] : 1;
    return {parameter.offset, rows, parameter.elements / rows};
  }
  CHECK(!"the unit has no parameter of this name");
  return {};
}

Tensor ParameterView::In(std::byte* parameters, ElementType type) const {
  if (!present()) return {};
  return {parameters + offset * BytesOf(type), type, rows, columns};
}

Tensor ParameterView::In(const GradientWindow& gradients) const {
  if (!present()) return {};
  return {reinterpret_cast<std::byte*>(gradients.data + offset), ElementType::kFp32, rows, columns};
}

void Linear::Forward(Tensor x_NI, std::byte* parameters, Tensor y_NO,
                     const Backend& backend) const {
  backend.kernels.LinearForward(x_NI, weight_.In(parameters, x_NI.type),
                                bias_.In(parameters, x_NI.type), layout_, y_NO, backend.stream);
}

void Linear::BackwardInput(Tensor dy_NO, std::byte* parameters, Tensor dx_NI,
                           const Backend& backend) const {
  backend.kernels.LinearBackwardInput(dy_NO, weight_.In(parameters, dy_NO.type), layout_, dx_NI,
                                      backend.stream);
}

void Linear::BackwardWeight(Tensor x_NI, Tensor dy_NO, const GradientWindow& gradients,
                            const Backend& backend) const {
  backend.kernels.LinearBackwardWeight(x_NI, dy_NO, layout_, gradients.sum, weight_.In(gradients),
                                       bias_.In(gradients), backend.stream);
}

Norm::Norm(const ModelSpec& model, const UnitSpec& unit, const std::string& name)
    : architecture_(model.architecture),
      epsilon_(model.norm_epsilon),
      weight_(ParameterView::Find(unit, name + ".weight")) {
  if (architecture_ == Architecture::kGpt2) bias_ = ParameterView::Find(unit, name + ".bias");
}

void Norm::Forward(Tensor x_NH, std::byte* parameters, Tensor y_NH, const Statistics& statistics,
                   const Backend& backend) const {
  const Tensor weight_H = weight_.In(parameters, x_NH.type);
  switch (architecture_) {
    case Architecture::kGpt2:
      backend.kernels.LayerNormForward(x_NH, weight_H, bias_.In(parameters, x_NH.type), epsilon_,
                                       y_NH, statistics.mean_N, statistics.rstd_N, backend.stream);
      return;
    case Architecture::kLlama:
      backend.kernels.RmsNormForward(x_NH, weight_H, epsilon_, y_NH, statistics.rstd_N,
                                     backend.stream);
      return;
  }
}

void Norm::BackwardInput(Tensor dy_NH, Tensor x_NH, std::byte* parameters,
                         const Statistics& statistics, Tensor dx_NH, Tensor partial,
                         const Backend& backend) const {
  const Tensor weight_H = weight_.In(parameters, x_NH.type);
  backend.kernels.Zero(partial, backend.stream);
  switch (architecture_) {
    case Architecture::kGpt2:
      backend.kernels.LayerNormBackwardWeight(dy_NH, x_NH, statistics.mean_N, statistics.rstd_N,
                                              PartialWeight(partial), PartialBias(partial),
                                              backend.stream);
      backend.kernels.LayerNormBackwardInput(dy_NH, x_NH, weight_H, statistics.mean_N,
                                             statistics.rstd_N, dx_NH, backend.stream);
      return;
    case Architecture::kLlama:
      backend.kernels.RmsNormBackwardWeight(dy_NH, x_NH, statistics.rstd_N, PartialWeight(partial),
                                            backend.stream);
      backend.kernels.RmsNormBackwardInput(dy_NH, x_NH, weight_H, statistics.rstd_N, dx_NH,
                                           backend.stream);
      return;
  }
}

void Norm::BackwardWeight(Tensor partial, const GradientWindow& gradients,
                          const Backend& backend) const {
  // A partial is a sum from zero, never -0: copied, it has the bits of 0 + partial.
  const auto take = [&](Tensor part, Tensor sum) {
    if (gradients.sum == GradientSum::kBegins) {
      backend.kernels.Convert(part, sum, backend.stream);
    } else {
      backend.kernels.Accumulate(part, sum, backend.stream);
    }
  };
  take(PartialWeight(partial), weight_.In(gradients));
  if (bias_.present()) take(PartialBias(partial), bias_.In(gradients));
}

Tensor Norm::PartialWeight(Tensor partial) const {
  return {partial.data, partial.type, 1, weight_.columns};
}

Tensor Norm::PartialBias(Tensor partial) const {
  return {partial.data + weight_.columns * BytesOf(partial.type), partial.type, 1, bias_.columns};
}

Tensor Dropped(Tensor x_NH, const UnitArguments& arguments, uint64_t which, Tensor dropped_NH,
               const Backend& backend) {
  if (arguments.dropout.rate == 0) return x_NH;
  DropoutMask mask = arguments.dropout;
  mask.site += which;
  mask.sequence = arguments.sequence;
  backend.kernels.Dropout(x_NH, mask, dropped_NH, backend.stream);
  return dropped_NH;
}

AttentionShape ShapeOfAttention(const ModelSpec& model, const UnitArguments& arguments) {
  return {arguments.batch, arguments.sequence, model.num_heads, model.num_kv_heads,
          model.head_size()};
}

Tensor AttentionScratch(const ModelSpec& model, const Slices& workspace,
                        const UnitArguments& arguments) {
  return workspace.View("attention", 1,
                        AttentionWorkspaceElements(arguments.batch, arguments.sequence,
                                                   model.num_kv_heads, model.head_size()));
}

}  // namespace esteira
