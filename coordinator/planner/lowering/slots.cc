// Buffers get numbers: a value takes a slot where it is made and gives it back after its last use,
// in program order. The slot that has been free the longest is taken again, so that a writer seldom
// waits for the last reader. The number of slots of a class is the largest number of values alive
// at once, so peak memory is exact.
#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "common/plan/sizes.h"
#include "common/plan/validate.h"
#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

using Value = std::pair<int, int>;  // unit, micro-batch (-1: none)

// The slots of one class.
class Pool {
 public:
  explicit Pool(int count = 0) : count_(count), free_(static_cast<size_t>(count)) {
    std::iota(free_.begin(), free_.end(), 0);
  }

  int Take(const Value& value) {
    int slot = count_;
    if (free_.empty()) {
      ++count_;
    } else {
      slot = free_.front();
      free_.pop_front();
    }
    CHECK(live_.emplace(value, slot).second);
    return slot;
  }
  int Find(const Value& value) const { return live_.at(value); }
  int Give(const Value& value) {
    const auto found = live_.find(value);
    CHECK(found != live_.end());
    const int slot = found->second;
    free_.push_back(slot);
    live_.erase(found);
    return slot;
  }
  int count() const { return count_; }
  bool empty() const { return live_.empty(); }

 private:
  int count_;
  std::deque<int> free_;
  std::map<Value, int> live_;
};

// Numbers the slots of one program. An activation is named by the unit that reads it, a gradient by
// the unit that makes it (dx), `saved` by its unit.
class SlotPass {
 public:
  SlotPass(const Plan& plan, const std::vector<UnitSpec>& units, int stage, bool train)
      : units_(units),
        train_(train),
        window_slots_(HasWindowSlots(plan.layout, stage)),
        gathers_slots_(!PlacementOf(plan.layout.zero).whole_parameters),
        head_(NumComputeUnits(plan.model) - 1),
        recompute_(plan.layout.policy(stage).recompute) {
    for (int u = 0; u <= head_; ++u) {
      keeps_.push_back(SavedLayout(plan.model, units[static_cast<size_t>(u)],
                                   plan.layout.micro_batch_size, plan.layout.sequence_length,
                                   plan.precision)
                           .bytes > 0);
    }
  }

  // The pools start with `slots`, and grow when those are not enough.
  void Run(Program& program, const std::array<SlotClass, kNumSlotKinds>& slots) {
    for (size_t kind = 0; kind < pools_.size(); ++kind) pools_[kind] = Pool(slots[kind].count);
    for (Instruction& instruction : program.instructions) Number(instruction);
    for (size_t kind = 0; kind < pools_.size(); ++kind) {
      CHECK(pools_[kind].empty());
      program.slots[kind].count = pools_[kind].count();
    }
  }

 private:
  Pool& pool(SlotKind kind) { return pools_[static_cast<size_t>(kind)]; }
  bool Keeps(int unit) const { return keeps_[static_cast<size_t>(unit)]; }
  bool Recomputes(int unit) const { return train_ && recompute_ && unit > 0 && unit < head_; }

  void Number(Instruction& instruction) {
    switch (instruction.op) {
      case Op::kForward: return Forward(instruction);
      case Op::kRecompute: return Recompute(instruction);
      case Op::kBackward:
      case Op::kBackwardInput:
      case Op::kBackwardWeight: return Backward(instruction);
      case Op::kRecvAct: instruction.x = pool(SlotKind::kActivation).Take(At(instruction)); return;
      case Op::kSendAct:
        instruction.y = pool(SlotKind::kActivation).Give(At(instruction, 1));
        return;
      case Op::kRecvGrad:
        instruction.dy = pool(SlotKind::kGradient).Take(At(instruction, 1));
        return;
      case Op::kSendGrad: instruction.dx = pool(SlotKind::kGradient).Give(At(instruction)); return;
      case Op::kGather:
      case Op::kRelease:
      case Op::kClear:
      case Op::kReduce: return Shard(instruction);
      case Op::kTieGradient:
      case Op::kNorm:
      case Op::kStep:
      case Op::kTieParameter: return;
    }
  }

  static Value At(const Instruction& instruction, int offset = 0) {
    return {instruction.unit + offset, instruction.micro_batch};
  }

  void Forward(Instruction& f) {
    Pool& activations = pool(SlotKind::kActivation);
    if (f.unit > 0) f.x = activations.Find(At(f));
    if (f.unit < head_) f.y = activations.Take(At(f, 1));
    if (Keeps(f.unit) && !Recomputes(f.unit)) f.saved = pool(SlotKind::kSaved).Take(At(f));
    if (train_) return;
    if (f.unit > 0) activations.Give(At(f));
    if (f.saved >= 0) pool(SlotKind::kSaved).Give(At(f));
  }

  void Recompute(Instruction& r) {
    r.x = pool(SlotKind::kActivation).Find(At(r));
    if (Keeps(r.unit)) r.saved = pool(SlotKind::kSaved).Take(At(r));
  }

  void Backward(Instruction& b) {
    Pool& activations = pool(SlotKind::kActivation);
    Pool& gradients = pool(SlotKind::kGradient);
    const bool makes_input = b.op != Op::kBackwardWeight;
    if (b.unit > 0) b.x = activations.Find(At(b));
    if (b.unit < head_) b.dy = gradients.Find(At(b, 1));
    if (b.unit > 0 && makes_input) b.dx = gradients.Take(At(b));
    if (Keeps(b.unit)) b.saved = pool(SlotKind::kSaved).Find(At(b));
    if (b.op == Op::kBackwardInput) return;
    if (b.unit > 0) activations.Give(At(b));
    if (b.unit < head_) gradients.Give(At(b, 1));
    if (b.saved >= 0) pool(SlotKind::kSaved).Give(At(b));
  }

  void Shard(Instruction& instruction) {
    const bool window = instruction.op == Op::kClear || instruction.op == Op::kReduce;
    if (!(window ? window_slots_ : gathers_slots_)) return;
    Pool& slots = pool(window ? SlotKind::kWindow : SlotKind::kParameters);
    const bool opens = instruction.op == Op::kClear || instruction.op == Op::kGather;
    instruction.slot = opens ? slots.Take(At(instruction)) : slots.Give(At(instruction));
  }

  const std::vector<UnitSpec>& units_;
  const bool train_;
  const bool window_slots_;
  const bool gathers_slots_;
  const int head_;
  const bool recompute_;
  std::vector<bool> keeps_;  // by unit: whether it saves anything
  std::array<Pool, kNumSlotKinds> pools_;
};

}  // namespace

absl::StatusOr<Plan> Slots(Plan plan) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) {
      // Once to count; then again, so that a slot is not taken twice while others were never used.
      Program counted = program;
      const bool train = programs == &plan.train;
      SlotPass(plan, units, program.stage, train).Run(counted, {});
      SlotPass(plan, units, program.stage, train).Run(program, counted.slots);
    }
  }
  SizeSlots(plan);
  return plan;
}

}  // namespace esteira
