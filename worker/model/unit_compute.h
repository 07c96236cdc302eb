// What one unit of a model computes. Single-device: knows no ranks, no schedule, no ZeRO.
// Stateless: all it works on comes in as arguments, so one object serves every micro-batch.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "common/plan/model_spec.h"
#include "common/plan/sizes.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/tensor.h"

namespace esteira {

// One micro-batch as a unit sees it. Tensors have batch * sequence rows; an empty micro-batch has
// none.
struct UnitArguments {
  int64_t batch = 0;
  int64_t sequence = 0;
  std::byte* parameters = nullptr;       // the unit's flat buffer, in the job's precision
  std::byte* tied_parameters = nullptr;  // that of the unit's end of the tied table, if tied
  float* gradients = nullptr;            // the unit's gradient window, fp32
  float* tied_gradients = nullptr;
  // Begins: BackwardWeight assigns every parameter's gradient, whatever the window holds.
  GradientSum gradient_sum = GradientSum::kContinues;
  GradientSum tied_gradient_sum = GradientSum::kContinues;
  Tensor tokens;                   // int32 [N,1]; the embedding's input
  Tensor targets;                  // int32 [N,1]; the head's
  Tensor x;                        // [N,H]; not for the embedding
  Tensor y;                        // [N,H]; not for the head
  Tensor dy;                       // [N,H]; not for the head
  Tensor dx;                       // [N,H]; not for the embedding
  std::byte* saved = nullptr;      // SavedLayout of the unit; null: F that will be recomputed
  std::byte* workspace = nullptr;  // WorkspaceLayout of the unit
  LossSums* loss = nullptr;        // the head adds to it; null: the head recomputes
  // Rate 0: none. Sites are the unit's to count, from `dropout.site` on.
  DropoutMask dropout;
  bool evaluate = false;  // forward only: the head leaves out the gradient
};

class UnitCompute {
 public:
  virtual ~UnitCompute() = default;
  // x -> y and saved. The head: x -> loss, and in training all that its backward pass needs.
  // Recompute: `y` without data (the head: no `loss`); only `saved` is made, the same bits as
  // before. Without `saved` (the pass before a recompute) only y, or the loss, is made.
  virtual void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const = 0;
  // dy, x, saved -> dx; leaves in `saved` what BackwardWeight needs besides x and dy.
  virtual void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                             Stream& stream) const = 0;
  // Adds to gradients, or begins their sums. Only after BackwardInput of the same micro-batch; x
  // and dy are still there.
  virtual void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                              Stream& stream) const = 0;
};

std::unique_ptr<UnitCompute> MakeUnitCompute(const ModelSpec& model, const UnitSpec& unit,
                                             Precision precision);

// MakeUnitCompute, or what stands in its place (paced_units.h). Not for units of parameters only.
using UnitFactory = std::function<std::unique_ptr<UnitCompute>(
    const ModelSpec& model, const UnitSpec& unit, Precision precision)>;

// The first of a unit's dropouts.
inline uint64_t DropoutSite(int unit) { return 2 * static_cast<uint64_t>(unit); }

// Fills `master` (the elements `range` of the unit's flat buffer) with initial weights: a function
// of (seed, name, element index) only. Gaps become zero. Host memory.
struct Range;
void InitialWeights(const UnitSpec& unit, uint64_t seed, const Range& range,
                    std::span<float> master);

}  // namespace esteira
