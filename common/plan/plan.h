#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/instruction.h"
#include "common/plan/layout.h"
#include "common/plan/model_spec.h"

namespace esteira {

// Slots of one kind that are equally large.
struct SlotClass {
  int64_t bytes = 0;  // of one slot
  int32_t count = 0;
  bool operator==(const SlotClass&) const = default;
};

// What a rank of one stage does in one step, in order. The ranks of a stage, one of each replica,
// do the same, each with its replica's samples (Layout::MicroBatchesOf).
struct Program {
  int stage = 0;
  std::vector<int> units;  // held by the stage, ascending, ends of a tied table included
  std::vector<Instruction> instructions;
  // By SlotKind. Numbers run on from class to class: the first slot of the second class follows the
  // last of the first.
  std::array<std::vector<SlotClass>, kNumSlotKinds> slots;
  bool operator==(const Program&) const = default;

  const std::vector<SlotClass>& slot_classes(SlotKind kind) const {
    return slots[static_cast<size_t>(kind)];
  }
  int64_t num_slots(SlotKind kind) const;
};

// Which of a unit's buffers a rank holds whole, and which only as its shard. The only trace of the
// ZeRO level.
struct Placement {
  bool whole_parameters = true;  // ZeRO 0-2
  bool whole_sums = true;        // ZeRO 0-1
  bool whole_states = true;      // ZeRO 0: master weights and moments
};
Placement PlacementOf(int zero);

// Bytes of one rank at its peak, by what they are for.
struct MemoryUse {
  int64_t parameters = 0;  // in the job's precision
  int64_t gradients = 0;   // sums, in SumType
  int64_t optimizer = 0;   // master, first and second moment, fp32
  int64_t slots = 0;
  int64_t workspace = 0;
  int64_t total() const { return parameters + gradients + optimizer + slots + workspace; }
  bool operator==(const MemoryUse&) const = default;
};

struct Prediction {
  double step_seconds = 0;
  double bubble_ratio = 0;  // share of the step that a rank's compute queue is idle
  double exposed_communication_ratio =
      0;  // the part of it that waits for GATHER, REDUCE, NORM, TIE
  std::array<double, kNumOps> op_seconds{};  // by op, summed over the ranks
  std::vector<MemoryUse> memory;             // of one rank, by stage
  bool operator==(const Prediction&) const = default;
};

// Everything that is decided before a step, as data. It is as long as the pipeline is deep, however
// many replicas there are. `evaluate` computes the loss only (F, point to point, GATHER, RELEASE
// and one NORM), in the same slots as `train`.
struct Plan {
  ModelSpec model;
  Layout layout;
  Precision precision = Precision::kFp32;
  std::vector<int>
      worker_of_rank;             // which of the planner's workers holds a rank; each at most once
  std::vector<Program> train;     // by stage
  std::vector<Program> evaluate;  // by stage
  Prediction prediction;
  bool operator==(const Plan&) const = default;
};

// How far a plan is lowered: after which pass it stands. Validate checks what holds from there on.
// Stages and units of the programs are set in all of them; slots and slot classes are unset before
// kSlots.
enum class Phase {
  kGenerated,     // compute ops only; Instruction::unit is the chunk
  kExpanded,      // compute ops only, on units
  kPeers,         // the same: neighbours on one rank are known to need no exchange
  kPointToPoint,  // with SEND_* and RECV_*
  kZero,          // with everything else
  kOverlapped,    // the same, in a better order
  kJoined,        // the same, small units' collectives joined
  kSlots,         // every slot is numbered: what a worker gets
};
inline constexpr Phase kLowered = Phase::kSlots;

// Text form of whole plans: a header (model, layout, precision), then for each program a line
// "stage S", its units, its slots, and one instruction a line. Parse(Print(plan)) == plan, the
// prediction included. For golden files, logs, errors, and the command line.
std::string PrintPlan(const Plan& plan);
absl::StatusOr<Plan> ParsePlan(absl::string_view text);

// SHA-256 of the text form without the prediction and the workers: plans that do the same have
// equal digests.
std::string PlanDigest(const Plan& plan);

}  // namespace esteira
