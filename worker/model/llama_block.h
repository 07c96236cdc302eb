#pragma once

#include "worker/model/buffers.h"
#include "worker/model/layers.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// One Llama block: x + attention(RMSNorm(x)) with rotary positions and grouped key-value heads,
// then the same with a SwiGLU MLP (Touvron et al., 2023). Normalised activations are not saved: the
// weight pass forms them again. The input pass puts the gradients that the weight pass needs over
// tensors that are dead by then: q, k, v -> dq, dk, dv and gate, up -> d_gate, d_up.
class LlamaBlock : public UnitCompute {
 public:
  LlamaBlock(const ModelSpec& model, const UnitSpec& unit, Precision precision);

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override;
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override;
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override;

 private:
  struct Activations;
  Activations InSaved(const UnitArguments& arguments) const;
  Activations InWorkspace(const UnitArguments& arguments) const;
  void ForwardAttention(const UnitArguments& arguments, const Activations& kept,
                        const Backend& backend) const;
  void BackwardMlp(const UnitArguments& arguments, const Activations& kept,
                   const Backend& backend) const;
  void BackwardAttention(const UnitArguments& arguments, const Activations& kept,
                         const Backend& backend) const;

  ModelSpec model_;
  UnitBuffers buffers_;
  Norm norm1_;
  Linear q_;
  Linear k_;
  Linear v_;
  Linear output_;
  Norm norm2_;
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace esteira
