#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/plan/model_spec.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// Parts of a training step, as the table of step_limit shows them. Additions, norms and the
// function between the layers of an MLP are kPointwise; clearing, checks for non-finite values and
// sums of gradients are kMemory.
enum class StepPart { kEmbedding, kAttention, kMlp, kPointwise, kHead, kOptimizer, kMemory };
inline constexpr int kNumStepParts = static_cast<int>(StepPart::kMemory) + 1;
const char* NameOf(StepPart part);

// One call of an operation: what it is and the least that it needs.
struct TimedOperation {
  std::string name;
  StepPart part = StepPart::kMemory;
  double flops = 0;   // of matrix products
  int64_t bytes = 0;  // read and written, when it has no products
  // A product with weights, y[rows, out] = x[rows, in] w, or its gradients.
  WeightLayout layout = WeightLayout::kInOut;
  int64_t rows = 0, in = 0, out = 0;
  double seconds = 0;  // the shortest of all steps so far
};

// Kernels that take the processor time of each operation on its stream. A step repeats the same
// operations in the same order: what is kept is the shortest time of each.
class TimedKernels : public Kernels {
 public:
  // Begins a step: the next operation is again the first.
  virtual void BeginStep() = 0;
  // After the stream has been synchronized.
  virtual const std::deque<TimedOperation>& operations() const = 0;
};

std::unique_ptr<TimedKernels> MakeTimedKernels(const ModelSpec& model,
                                               std::unique_ptr<Kernels> kernels);

}  // namespace esteira
