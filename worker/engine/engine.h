// The interpreter of a Program: the one place where computation meets communication.
//
// For each instruction, in order: wait for its dependencies' events (common/plan/dependencies.h),
// issue it on its queue's stream with one small handler per op, record its event. Overlap comes
// from streams and events alone. Validate proved the preconditions, so handlers hold no defensive
// branches. At the end of a step every slot is empty, and that is checked. Knows no gRPC, no jobs,
// no files, no ZeRO level.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "worker/communication/collectives.h"
#include "worker/communication/transport.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// Fills inputs and targets ([count, sequence_length] each) of samples [first, first + count) of the
// whole run. A failure ends the step before it has begun.
using SampleReader = std::function<absl::Status(
    int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets)>;

// Where a non-finite value appeared first, or that none did.
struct NonFinite {
  bool found = false;
  int rank = -1;
  int unit = -1;
  int micro_batch = -1;  // -1: in the reduced gradient of the unit, or in its norm
};

// What a step was, and where its time went on this rank. Loss, norm, tokens and skipped are equal
// on all ranks.
struct StepReport {
  int64_t step = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  int64_t valid_tokens = 0;
  bool skipped = false;
  NonFinite non_finite;
  bool spike = false;  // skipped because its gradient norm is larger than the caller allowed
  // What this rank measured of its own part, not yet a mean. By unit: the squared norm of the
  // gradient of its shard; by micro-batch of its replica: zero unless it holds the head.
  std::vector<double> unit_squares;
  std::vector<LossSums> losses;
  double step_seconds = 0;
  double compute_seconds = 0;  // the compute stream was busy
  double bubble_seconds = 0;   // it waited for what other stages compute: common/plan/time_use.h
  double exposed_shard_seconds = 0;  // it waited for communication that computation could hide
  std::array<double, kNumOps> op_seconds{};
  std::array<int64_t, kNumOps> op_bytes{};  // moved by this rank
  std::optional<uint64_t>
      parameter_hash_part;  // sum over this rank's own elements: add over ranks, modulo 2^64
};

// The state of one unit that this rank owns, for checkpoints: elements `range` of the flat buffer.
// Host memory.
struct UnitState {
  int unit = 0;
  int64_t begin = 0, end = 0;
  std::span<float> master, m, v;
};

// Saved state of a unit: fills `values` with the elements of buffer `buffer` (0 master, 1 first
// moment, 2 second moment) of its flat buffer from `begin` on; gaps are zero. `unit` may be the
// head end of a tied table, whose master is its owner's.
using StateSource =
    std::function<absl::Status(int unit, int buffer, int64_t begin, std::span<float> values)>;

struct EngineOptions {
  int rank = 0;
  absl::Duration operation_timeout = absl::Minutes(5);
  bool check_finite_each_op = true;  // names the unit and micro-batch of a non-finite value
  UnitFactory make_unit = MakeUnitCompute;
};

// Not thread-safe; Abort from any thread (through the transport).
class Engine {
 public:
  virtual ~Engine() = default;

  // Allocates everything (after this no step allocates) and sets initial weights. `plan` is
  // validated here again. Device, kernels and transport outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Make(const Plan& plan, const JobSpec& job,
                                                      const EngineOptions& options, Device& device,
                                                      Kernels& kernels, Transport& transport);

  // One optimizer step (from 1). `hash`: also form the parameter hash. A step that is skipped for
  // its loss or norm, or because the norm is above `largest_norm`, leaves the state as it was: the
  // same step may be run again.
  virtual absl::StatusOr<StepReport> Step(
      int64_t step, const SampleReader& samples, bool hash,
      double largest_norm = std::numeric_limits<double>::infinity()) = 0;
  // Mean loss over `batches` global batches, starting at sample 0 of `samples`.
  virtual absl::StatusOr<double> Evaluate(int64_t batches, const SampleReader& samples) = 0;
  // Optimizer state, by unit, of what this rank owns after the optimizer (with ZeRO 0: its shard's
  // range of the whole): ShardMap::Valid of each unit, without those where it is empty. Head ends
  // of tied tables are left out.
  virtual std::vector<UnitState> States() = 0;
  // Between steps: takes over the state that `source` holds, as if this engine had made
  // `updates` updates itself. Parameters are made from the masters as STEP makes them; each rank
  // reads what it holds, and nothing is communicated. After a failure the engine is of no use.
  virtual absl::Status Restore(int64_t updates, const StateSource& source) = 0;
  // Number of optimizer updates made so far (steps less skipped ones).
  virtual int64_t updates() const = 0;
};

}  // namespace esteira
