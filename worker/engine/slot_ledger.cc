#include "worker/engine/slot_ledger.h"

#include "absl/strings/str_cat.h"

namespace esteira {

SlotLedger::SlotLedger(const Program& program) {
  for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
    occupied_[kind].resize(static_cast<size_t>(program.num_slots(static_cast<SlotKind>(kind))));
  }
}

void SlotLedger::Set(SlotKind kind, int32_t slot, bool occupied) {
  if (slot < 0) return;
  occupied_[static_cast<size_t>(kind)][static_cast<size_t>(slot)] = occupied;
}

void SlotLedger::EnterForward(const Instruction& i, bool evaluate) {
  Set(SlotKind::kActivation, i.y, true);
  Set(SlotKind::kSaved, i.saved, !evaluate);
  if (evaluate) Set(SlotKind::kActivation, i.x, false);
}

void SlotLedger::EndBackward(const Instruction& i) {
  Set(SlotKind::kActivation, i.x, false);
  Set(SlotKind::kGradient, i.dy, false);
  Set(SlotKind::kSaved, i.saved, false);
}

void SlotLedger::Enter(const Instruction& i, bool evaluate) {
  switch (i.op) {
    case Op::kForward: return EnterForward(i, evaluate);
    case Op::kBackward: Set(SlotKind::kGradient, i.dx, true); return EndBackward(i);
    case Op::kBackwardInput: return Set(SlotKind::kGradient, i.dx, true);
    case Op::kBackwardWeight: return EndBackward(i);
    case Op::kRecompute: return Set(SlotKind::kSaved, i.saved, true);
    case Op::kSendAct: return Set(SlotKind::kActivation, i.y, false);
    case Op::kRecvAct: return Set(SlotKind::kActivation, i.x, true);
    case Op::kSendGrad: return Set(SlotKind::kGradient, i.dx, false);
    case Op::kRecvGrad: return Set(SlotKind::kGradient, i.dy, true);
    case Op::kGather: return Set(SlotKind::kParameters, i.slot, true);
    case Op::kRelease: return Set(SlotKind::kParameters, i.slot, false);
    case Op::kClear: return Set(SlotKind::kWindow, i.slot, true);
    case Op::kReduce: return Set(SlotKind::kWindow, i.slot, false);
    case Op::kTieGradient:
    case Op::kNorm:
    case Op::kStep:
    case Op::kTieParameter: return;
  }
}

absl::Status SlotLedger::CheckEmpty() const {
  for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
    for (size_t slot = 0; slot < occupied_[kind].size(); ++slot) {
      if (!occupied_[kind][slot]) continue;
      return absl::InternalError(absl::StrCat(SlotKindName(static_cast<SlotKind>(kind)), " slot ",
                                              slot, " is not empty at the end of the step"));
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira
