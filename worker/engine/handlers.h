#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "worker/communication/collectives.h"
#include "worker/communication/transport.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"
#include "worker/engine/memory.h"
#include "worker/engine/norm.h"
#include "worker/engine/queues.h"
#include "worker/engine/slot_ledger.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// What the engine owns and its handlers act on. All outlive the handlers.
struct Machinery {
  const Plan& plan;
  const std::vector<UnitSpec>& units;
  const EngineOptions& options;
  Device& device;
  Kernels& kernels;
  Transport& transport;
  RankMemory& memory;
  Queues& queues;
  Collectives& stage;  // the ranks that hold the same stage
  Collectives& all;    // all ranks
};

// What one run of a program is for. A train run clips and updates with `adamw`, whose
// gradient_scale and weight_decay of each parameter the STEP handler decides.
struct RunSettings {
  bool evaluate = false;
  AdamWStep adamw;
  double weight_decay = 0;  // of parameters that decay
  double clip_norm = 0;
  double largest_norm = std::numeric_limits<double>::infinity();  // a larger one is not applied
  // Training only; of the batch's first sample.
  DropoutMask dropout;
};

// One handler for each op: it issues the instruction's work on its queue's stream and returns.
// Handlers hold no defensive branches, since Validate proved the preconditions, and no ZeRO level:
// which elements a rank holds is told by the ranges of its memory. Used by one thread; only STEP
// waits, for NORM.
class Handlers {
 public:
  explicit Handlers(const Machinery& machinery);

  // Starts a run of `program`; no earlier run is in flight.
  void Begin(const Program& program, const RunSettings& settings);
  // Issues instruction `index`; its dependencies were waited for.
  void Issue(size_t index);

  // After the run. Internal when a slot is not empty.
  absl::Status CheckEmpty() const { return ledger_->CheckEmpty(); }
  const Contribution& total() const { return total_; }
  const Agreement& agreement() const { return agreement_; }
  // By unit: the sum of squares of this rank's shard of the gradient.
  const std::vector<double>& unit_squares() const { return unit_squares_; }
  const std::array<int64_t, kNumOps>& op_bytes() const { return op_bytes_; }

 private:
  // The gradient sums of one unit over a window of micro-batches. The first contribution begins the
  // sums, so that nothing need be cleared; until then they hold anything.
  struct Window {
    Tensor sums;                                 // without data: not open
    GradientSum next = GradientSum::kContinues;  // what the next contribution does
  };
  // A window that is to be summed over the replicas and, unless it is in place, added to the sums.
  struct Reduction {
    const UnitMemory* unit = nullptr;
    Tensor window;
    bool in_place = false;
  };

  void Forward(const Instruction& i, size_t index);
  void Backward(const Instruction& i, size_t index);
  void BackwardInput(const Instruction& i, size_t index);
  void BackwardWeight(const Instruction& i, size_t index);
  void Recompute(const Instruction& i);
  void Move(const Instruction& i, Transfer::Direction direction, Tensor tensor, Op kind,
            int boundary);
  // Joined: remembered, and run by the one that closes the group.
  void Gather(const Instruction& i);
  void Release(const Instruction& i);
  void Clear(const Instruction& i);
  void Reduce(const Instruction& i);
  // Of a group: this rank's shards of the windows become sums over the replicas.
  template <typename Element>
  void ScatterSums(const std::vector<Reduction>& group, Stream& stream);
  void ScatterSumsOfBf16(const std::vector<Reduction>& group, Stream& stream);
  void SpreadSums(const std::vector<Reduction>& group, Stream& stream);
  void TieGradient(const Instruction& i);
  void TieParameter(const Instruction& i);
  void Norm();
  void Step(const Instruction& i);

  // Between and behind the parameters: what no contribution assigns.
  void ClearGaps(const UnitSpec& unit, Tensor window, Stream& stream);
  // Exact numerics: adds the gradient that lies in scratch to the windows of the units it is of.
  void AddToWindows(const Instruction& i, const UnitArguments& arguments, size_t index);
  // Gradient sums in fp32: the one place where fixed point ends. Good until the next call.
  Tensor Gradient(const UnitMemory& unit, const Range& part, Stream& stream) const;

  // The parts of NORM that run on the shard queue.
  void AddOwnSquares();
  void AddFindings();
  void AddUpContributions();

  UnitArguments Arguments(const Instruction& i) const;
  // Of this rank's replica, in one global batch.
  MicroBatch Samples(int32_t micro_batch) const;
  // The rank of `stage` in this rank's replica.
  int Peer(int stage) const;
  Tensor Activations(SlotKind kind, int32_t slot, int32_t micro_batch) const;
  std::byte* Parameters(int unit) const;
  void CheckFinite(Tensor tensor, size_t index);
  Stream& StreamOf(Op op) const { return machinery_.queues[QueueOf(op)]; }
  int64_t& BytesOfOp(Op op) { return op_bytes_[static_cast<size_t>(op)]; }
  const UnitSpec& Spec(int unit) const { return machinery_.units[static_cast<size_t>(unit)]; }

  const Machinery machinery_;
  std::vector<std::unique_ptr<UnitCompute>> compute_;  // by unit; null when not held
  const ElementType type_;                             // of activations and parameters
  const ElementType sum_type_;                         // of windows and gradient sums
  const bool exact_;
  const bool rounded_;  // to bf16, before replicas add up

  // Of the run.
  const Program* program_ = nullptr;
  RunSettings settings_;
  std::optional<SlotLedger> ledger_;
  std::vector<std::byte*> gathered_;           // by unit: its gathered parameters, or null
  std::vector<Window> windows_;                // by unit
  std::vector<std::span<std::byte>> gathers_;  // of the open group
  std::vector<Reduction> reductions_;          // of the open group
  std::array<int64_t, kNumOps> op_bytes_{};
  // Written on the shard queue, read after NORM: once `agreed_` is reached.
  const std::unique_ptr<Event> agreed_;
  Contribution total_;
  Agreement agreement_;
  std::vector<double> unit_squares_;
};

}  // namespace esteira
