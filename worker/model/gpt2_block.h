#pragma once

#include "worker/model/buffers.h"
#include "worker/model/layers.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// One GPT-2 block: x + attention(LayerNorm(x)), then the same with a GELU MLP (Radford et al.,
// 2019). Normalised activations are not saved: the weight pass forms them again. The input pass
// puts the gradients that the weight pass needs over tensors that are dead by then: qkv -> d_qkv,
// inner -> d_inner.
class Gpt2Block : public UnitCompute {
 public:
  Gpt2Block(const ModelSpec& model, const UnitSpec& unit, Precision precision);

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override;
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override;
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override;

 private:
  struct Activations;
  Activations InSaved(const UnitArguments& arguments) const;
  Activations InWorkspace(const UnitArguments& arguments) const;

  ModelSpec model_;
  UnitBuffers buffers_;
  Norm norm1_;
  Linear qkv_;
  Linear attention_projection_;
  Norm norm2_;
  Linear inner_;
  Linear projection_;
};

}  // namespace esteira
