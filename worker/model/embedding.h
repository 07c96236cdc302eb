#pragma once

#include "worker/model/layers.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// Tokens -> activations: a row of the table each, and for GPT-2 a row of the learned positions.
// Saves nothing; has no gradient for its input. A tied table lies in the tied buffers.
class Embedding : public UnitCompute {
 public:
  Embedding(const ModelSpec& model, const UnitSpec& unit);

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override;
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override;
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override;

 private:
  bool tied_;
  ParameterView table_;
  ParameterView positions_;
};

}  // namespace esteira
