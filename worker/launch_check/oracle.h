#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// What a training step means, as plainly as it can be said: one rank, every micro-batch of the
// global batch in its order, every unit in its order, one sum of gradients, one norm, one update.
// No plan, no program, no slots, no communication, and nothing that makes it fast. It shares the
// units' arithmetic and the kernels with the engine, and nothing else; in exact numerics an engine
// gives its bits, whatever the layout. For toy sizes: it allocates as it goes. Not thread-safe.
class Oracle {
 public:
  // With initial weights. Device and kernels outlive it.
  static absl::StatusOr<std::unique_ptr<Oracle>> Make(const JobSpec& job, int64_t micro_batch_size,
                                                      Device& device, Kernels& kernels);
  ~Oracle();

  struct Outcome {
    double loss = 0;           // mean over the valid tokens
    double gradient_norm = 0;  // of the gradient of that mean
    int64_t valid_tokens = 0;
  };
  // One optimizer step (from 1). Nothing is updated when loss or norm is not finite, or no token is
  // valid.
  absl::StatusOr<Outcome> Step(int64_t step, const SampleReader& samples);

  // fp32 master weights of a unit's flat buffer; empty when the unit has none of its own (the head
  // end of a tied table: its owner has them).
  std::span<const float> Master(int unit) const;

 private:
  struct Unit;
  Oracle(const JobSpec& job, int64_t micro_batch_size, Device& device, Kernels& kernels);

  absl::Status AllocateUnits();
  absl::Status AllocateScratch();
  absl::StatusOr<Buffer> Allocate(int64_t bytes);
  absl::StatusOr<LossSums> RunMicroBatch(int64_t first_sample, int64_t count,
                                         const SampleReader& samples);
  UnitArguments Arguments(size_t unit, int64_t first_sample, int64_t count);
  void AddGradients(size_t unit);
  Tensor Gradient(const Unit& unit, int64_t offset, int64_t elements);
  absl::StatusOr<double> SumOfSquares();
  void Update(double learning_rate, const Outcome& outcome);
  Unit& HolderOf(int unit) const;  // the owner in place of a tied table's head end

  const JobSpec job_;
  const int64_t micro_batch_size_;
  Device& device_;
  Kernels& kernels_;
  const std::unique_ptr<Stream> stream_;
  const bool exact_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::array<Buffer, 2> activation_gradients_;  // by whether the unit's number is odd
  std::array<Buffer, 2> gradients_;  // exact: of one micro-batch, of a unit and of its table
  Buffer workspace_, losses_, refused_, gradient_, blocks_, tokens_, targets_;
  int64_t updates_ = 0;
};

}  // namespace esteira
