#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace esteira {

// Which slots hold something that is still needed, by the instructions issued so far. Slots end
// where their last use ends: x, saved and dy with the backward pass of their unit (in an evaluate
// program x and saved with its forward pass), what is sent with its send. Not thread-safe.
class SlotLedger {
 public:
  explicit SlotLedger(const Program& program);

  void Enter(const Instruction& instruction, bool evaluate);
  // Internal, with the first slot that is not empty.
  absl::Status CheckEmpty() const;

 private:
  void Set(SlotKind kind, int32_t slot, bool occupied);
  void EnterForward(const Instruction& instruction, bool evaluate);
  void EndBackward(const Instruction& instruction);

  std::array<std::vector<bool>, kNumSlotKinds> occupied_;
};

}  // namespace esteira
