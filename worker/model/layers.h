// The layers that units are made of: each knows where its parameters lie in the unit's flat
// buffers, and calls the kernels. Values without state; forward, input-gradient and weight-gradient
// passes are separate calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/plan/model_spec.h"
#include "common/plan/sizes.h"
#include "worker/kernels/kernels.h"
#include "worker/model/buffers.h"
#include "worker/model/unit_compute.h"
#include "worker/tensor/tensor.h"

namespace esteira {

// The fp32 gradients of a unit's flat buffer, and what becomes of what they hold.
struct GradientWindow {
  float* data = nullptr;
  GradientSum sum = GradientSum::kContinues;

  static GradientWindow Of(const UnitArguments& arguments) {
    return {arguments.gradients, arguments.gradient_sum};
  }
  static GradientWindow OfTied(const UnitArguments& arguments) {
    return {arguments.tied_gradients, arguments.tied_gradient_sum};
  }
};

// Where arithmetic runs.
struct Backend {
  Kernels& kernels;
  Stream& stream;
};

// One parameter inside a unit's flat buffers. Vectors have one row. Without elements: the layer has
// none (a bias).
struct ParameterView {
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  // The unit's parameter whose name ends in `suffix`; CHECKs that there is one.
  static ParameterView Find(const UnitSpec& unit, const std::string& suffix);

  // The only parameter of either end of a tied table.
  static ParameterView TiedTable(const ModelSpec& model) {
    return {0, model.vocab_size, model.hidden_size};
  }

  bool present() const { return rows > 0; }
  Tensor In(std::byte* parameters, ElementType type) const;
  Tensor In(const GradientWindow& gradients) const;
};

// y = x w + b.
class Linear {
 public:
  Linear(ParameterView weight, ParameterView bias, WeightLayout layout)
      : weight_(weight), bias_(bias), layout_(layout) {}

  void Forward(Tensor x_NI, std::byte* parameters, Tensor y_NO, const Backend& backend) const;
  void BackwardInput(Tensor dy_NO, std::byte* parameters, Tensor dx_NI,
                     const Backend& backend) const;
  void BackwardWeight(Tensor x_NI, Tensor dy_NO, const GradientWindow& gradients,
                      const Backend& backend) const;

 private:
  ParameterView weight_;
  ParameterView bias_;
  WeightLayout layout_;
};

// LayerNorm (GPT-2) or RMSNorm (Llama). Its weight gradient needs dy, which is dead after the pass
// for the input; so that pass leaves the sums over the micro-batch, a few vectors, in `partial`,
// and BackwardWeight adds them up.
class Norm {
 public:
  // `name`: "ln_1", "input_layernorm", ...
  Norm(const ModelSpec& model, const UnitSpec& unit, const std::string& name);

  struct Statistics {
    Tensor mean_N;  // not for RMSNorm
    Tensor rstd_N;
  };
  void Forward(Tensor x_NH, std::byte* parameters, Tensor y_NH, const Statistics& statistics,
               const Backend& backend) const;
  // `partial` is assigned.
  void BackwardInput(Tensor dy_NH, Tensor x_NH, std::byte* parameters, const Statistics& statistics,
                     Tensor dx_NH, Tensor partial, const Backend& backend) const;
  void BackwardWeight(Tensor partial, const GradientWindow& gradients,
                      const Backend& backend) const;

  // The slice `name` as a partial: fp32, one row of weight and, for LayerNorm, bias.
  Tensor Partial(const Slices& slices, const char* name) const {
    return slices.View(name, 1, weight_.columns + bias_.columns);
  }

 private:
  Tensor PartialWeight(Tensor partial) const;
  Tensor PartialBias(Tensor partial) const;

  Architecture architecture_;
  double epsilon_;
  ParameterView weight_;
  ParameterView bias_;
};

// A tensor on its way through a dropout: `x` itself when the rate is 0, else `dropped`, which
// receives it. `which` of the unit's dropouts it is: 0 or 1.
Tensor Dropped(Tensor x_NH, const UnitArguments& arguments, uint64_t which, Tensor dropped_NH,
               const Backend& backend);

// The attention of one micro-batch, and its scratch in the workspace of a block.
AttentionShape ShapeOfAttention(const ModelSpec& model, const UnitArguments& arguments);
Tensor AttentionScratch(const ModelSpec& model, const Slices& workspace,
                        const UnitArguments& arguments);

}  // namespace esteira
