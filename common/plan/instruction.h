#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

// What a rank can be told to do. x, y: input and output activation of a unit; dy, dx: their
// gradients.
enum class Op : uint8_t {
  // Compute, on one (unit, micro-batch).
  kForward,         // F   x -> y, saved
  kBackward,        // B   dy, x, saved -> dx; adds to the unit's gradient window. Equals I then W.
  kBackwardInput,   // I   dy, x, saved -> dx
  kBackwardWeight,  // W   dy, x, saved; adds to the gradient window
  kRecompute,       // R   x -> saved (F again, without y)
  // Point to point, on one (unit, micro-batch).
  kSendAct,   // SEND_ACT   y of the unit, to the rank of the next unit
  kRecvAct,   // RECV_ACT   x of the unit, from the rank of the unit before
  kSendGrad,  // SEND_GRAD  dx of the unit, to the rank of the unit before
  kRecvGrad,  // RECV_GRAD  dy of the unit, from the rank of the next unit
  // Sharding, on a unit's parameters, among the replicas of a stage.
  kGather,   // GATHER   all-gather of parameters: into slot (ZeRO 3), or in place when each rank
             // holds all of them
  kRelease,  // RELEASE  the slot of the gathered parameters is free; takes no time
  kClear,    // CLEAR    opens the unit's gradient window in slot (none: the sums themselves), as
             // if with zeros
  kReduce,   // REDUCE   closes the window: sums it over the replicas and adds it to the gradient
             // sums
  // End of step.
  // TIE_* have the unit of the end that their rank holds, and the other end's stage as peer. With
  // both ends on one rank
  // there is one TIE_GRAD, of the head end and without peer, and no TIE_PARAM.
  kTieGradient,  // TIE_GRAD   the head end's gradient sums are added to the owner's
  kNorm,         // NORM       all ranks agree on loss, gradient norm and whether the step counts
  kStep,  // STEP       the optimizer updates the unit's master weights, moments and own parameters
  kTieParameter,  // TIE_PARAM  the owner's updated parameters are copied to the head end
};
inline constexpr int kNumOps = static_cast<int>(Op::kTieParameter) + 1;

// The FIFO queue of a rank on which an op runs. Order between queues comes from dependencies alone.
enum class Queue : uint8_t { kCompute, kSendAct, kRecvAct, kSendGrad, kRecvGrad, kShard };
inline constexpr int kNumQueues = static_cast<int>(Queue::kShard) + 1;

// Buffers that instructions share. A slot is numbered within its kind.
enum class SlotKind : uint8_t {
  kActivation,  // x and y: [micro_batch_size, sequence, hidden], in the job's precision
  kGradient,    // dx and dy: the same shape
  kSaved,       // what the backward pass of one (unit, micro-batch) needs: sizes.h
  kParameters,  // one unit's gathered parameters
  kWindow,      // one unit's gradient window, in SumType
};
inline constexpr int kNumSlotKinds = static_cast<int>(SlotKind::kWindow) + 1;

// A small fixed-size value. -1: does not apply, or not yet lowered that far. The embedding has no x
// and dx, the head no y and dy, a forward pass that will be recomputed no saved.
struct Instruction {
  Op op = Op::kForward;
  int32_t unit = -1;         // before `expand`: the chunk
  int32_t micro_batch = -1;  // of the replica, from 0
  int32_t peer = -1;         // the stage of the other end, in the same replica
  int32_t x = -1;            // activation slot
  int32_t y = -1;            // activation slot
  int32_t dx = -1;           // gradient slot
  int32_t dy = -1;           // gradient slot
  int32_t saved = -1;        // saved slot
  int32_t slot = -1;         // GATHER, RELEASE: parameters slot; CLEAR, REDUCE: window slot
  bool joined = false;  // GATHER in place, REDUCE: runs together with the next one on its queue

  bool operator==(const Instruction&) const = default;
};

bool IsCompute(Op op);       // F B I W R
bool IsPointToPoint(Op op);  // SEND_* RECV_*
bool IsSend(Op op);
Queue QueueOf(Op op);
const char* OpName(Op op);  // "F", "SEND_ACT", ...
const char* SlotKindName(SlotKind kind);

// The one text form: unit, op, micro-batch, peer, then slots: "3F0 x1 y2 s0", "3SEND_ACT0>2 y2",
// "3RECV_GRAD0<2 dy1", "5GATHER p0", "5REDUCE w1", "NORM". RELEASE and CLEAR print like GATHER and
// REDUCE; TIE_* print "8TIE_GRAD>3"; what is joined ends in " +": "5REDUCE +".
std::string ToText(const Instruction& instruction);
absl::StatusOr<Instruction> ParseInstruction(absl::string_view text);

}  // namespace esteira
