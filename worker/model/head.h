#pragma once

#include "worker/model/layers.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// The final norm, the logits and the loss. Training turns the saved logits into their gradient at
// once; evaluation leaves the logits in saved ("logits" of its SavedLayout), where a sampler reads
// them. A tied table lies in the tied buffers. Logits are formed and scored HeadRowsAtOnce rows at
// a time, always: so a pass without saved needs no room for all of them and still gives the same
// bits.
class Head : public UnitCompute {
 public:
  Head(const ModelSpec& model, const UnitSpec& unit, Precision precision);

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override;
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override;
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override;

 private:
  Norm::Statistics StatisticsIn(const Slices& slices, int64_t tokens_N) const;
  void Score(const UnitArguments& arguments, Tensor logits, Tensor targets, LossSums* loss,
             const Backend& backend) const;

  ModelSpec model_;
  UnitBuffers buffers_;
  Norm norm_;
  Linear table_;
};

}  // namespace esteira
