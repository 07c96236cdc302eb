#include <array>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/sizes.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "slots";

// What a slot holds: an activation or a gradient is named by the unit whose output it belongs to.
struct Value {
  int unit = -1;
  int micro_batch = -1;
  bool operator==(const Value&) const = default;
};
struct Slot {
  int64_t bytes = 0;
  bool live = false;
  Value value;
};

std::string Describe(SlotKind kind, const Value& value) {
  std::string text = absl::StrCat(SlotKindName(kind), " of unit ", value.unit);
  if (value.micro_batch != -1) absl::StrAppend(&text, ", micro-batch ", value.micro_batch);
  return text;
}

// Follows what is in each slot through a program. The dependencies keep any execution equal to this
// one.
class SlotCheck {
 public:
  explicit SlotCheck(const Subject& subject) : subject_(subject), context_(subject.context) {
    const Plan& plan = context_.plan;
    for (int unit : subject.program.units) {
      for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
        needed_bytes_[unit][kind] = SlotBytes(plan.model, plan.layout, plan.precision,
                                              context_.unit(unit), static_cast<SlotKind>(kind));
      }
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(CheckClasses());
    for (index_ = 0; index_ < subject_.program.instructions.size(); ++index_) {
      RETURN_IF_ERROR(Follow(subject_.program.instructions[index_]));
    }
    for (size_t kind = 0; kind < slots_.size(); ++kind) {
      for (size_t number = 0; number < slots_[kind].size(); ++number) {
        if (!slots_[kind][number].live) continue;
        const auto slot_kind = static_cast<SlotKind>(kind);
        return Fault(
            kCheck, subject_,
            absl::StrCat("every slot empty at the end, but ", SlotKindName(slot_kind), " slot ",
                         number, " holds ", Describe(slot_kind, slots_[kind][number].value)));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckClasses() {
    const Plan& plan = context_.plan;
    const auto stage = static_cast<size_t>(subject_.program.stage);
    if (!subject_.train && subject_.program.slots != plan.train[stage].slots) {
      return Fault(kCheck, subject_, "the slots that the stage has in training");
    }
    // No more slots than instructions: what has more is damaged.
    const auto most = static_cast<int64_t>(plan.train[stage].instructions.size() +
                                           plan.evaluate[stage].instructions.size());
    for (size_t kind = 0; kind < slots_.size(); ++kind) {
      for (const SlotClass& slots : subject_.program.slots[kind]) {
        const int64_t before = static_cast<int64_t>(slots_[kind].size());
        if (slots.count < 0 || slots.count > most - before || slots.bytes < 0) {
          return Fault(kCheck, subject_,
                       absl::StrCat("0 to ", most, " ", SlotKindName(static_cast<SlotKind>(kind)),
                                    " slots in all, found ", before, " and then ", slots.count,
                                    " of ", slots.bytes, " bytes"));
        }
        slots_[kind].insert(slots_[kind].end(), static_cast<size_t>(slots.count),
                            Slot{slots.bytes, false, {}});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Wrong(absl::string_view expected) const {
    return FaultAt(kCheck, subject_, index_, expected);
  }

  // The number that an operand must have: at least 0 and below the class's count if `used`, else
  // -1.
  absl::Status Operand(SlotKind kind, int32_t number, bool used) const {
    const auto count = static_cast<int32_t>(slots_[static_cast<size_t>(kind)].size());
    if (!used && number != -1)
      return Wrong(absl::StrCat("no ", SlotKindName(kind), " slot ", number));
    if (used && (number < 0 || number >= count)) {
      return Wrong(absl::StrCat(SlotKindName(kind), " slot below ", count, ", found ", number));
    }
    return absl::OkStatus();
  }

  int64_t NeededBytes(int unit, SlotKind kind) const {
    return needed_bytes_.at(unit)[static_cast<size_t>(kind)];
  }

  Slot& At(SlotKind kind, int32_t number) {
    return slots_[static_cast<size_t>(kind)][static_cast<size_t>(number)];
  }

  // `value` is in the slot; afterwards, if `last`, the slot is free.
  absl::Status Take(SlotKind kind, int32_t number, Value value, bool last) {
    Slot& slot = At(kind, number);
    if (!slot.live || slot.value != value) {
      return Wrong(absl::StrCat(SlotKindName(kind), " slot ", number, " to hold ",
                                Describe(kind, value), ", found ",
                                slot.live ? Describe(kind, slot.value) : "nothing"));
    }
    slot.live = !last;
    return absl::OkStatus();
  }

  // `unit`: whose size the value has.
  absl::Status Put(SlotKind kind, int32_t number, Value value, int unit) {
    Slot& slot = At(kind, number);
    const int64_t needed = NeededBytes(unit, kind);
    if (slot.bytes < needed) {
      return Wrong(absl::StrCat(SlotKindName(kind), " slot ", number, " of at least ", needed,
                                " bytes, found ", slot.bytes));
    }
    if (slot.live) {
      return Wrong(absl::StrCat(SlotKindName(kind), " slot ", number, " to be free, found ",
                                Describe(kind, slot.value)));
    }
    slot.live = true;
    slot.value = value;
    return absl::OkStatus();
  }

  absl::Status Follow(const Instruction& i) {
    if (IsCompute(i.op)) return FollowCompute(i);
    if (IsPointToPoint(i.op)) return FollowPointToPoint(i);
    return FollowShard(i);
  }

  bool Recomputed(int unit) const {
    return subject_.train && context_.plan.layout.policy(subject_.program.stage).recompute &&
           context_.unit(unit).kind == UnitKind::kBlock;
  }

  absl::Status CheckOperands(const Instruction& i) const {
    const bool forward = i.op == Op::kForward;
    const bool backward = !forward && i.op != Op::kRecompute;
    const bool first = i.unit == 0;
    const bool last = i.unit + 1 == context_.num_items();
    const bool keeps = NeededBytes(i.unit, SlotKind::kSaved) > 0;
    const bool saves = keeps && !(forward && Recomputed(i.unit));
    RETURN_IF_ERROR(Operand(SlotKind::kActivation, i.x, !first));
    RETURN_IF_ERROR(Operand(SlotKind::kActivation, i.y, forward && !last));
    RETURN_IF_ERROR(Operand(SlotKind::kGradient, i.dy, backward && !last));
    RETURN_IF_ERROR(
        Operand(SlotKind::kGradient, i.dx, backward && i.op != Op::kBackwardWeight && !first));
    RETURN_IF_ERROR(Operand(SlotKind::kSaved, i.saved, saves));
    return Operand(SlotKind::kParameters, i.slot, false);
  }

  absl::Status FollowCompute(const Instruction& i) {
    RETURN_IF_ERROR(CheckOperands(i));
    const Value input{i.unit - 1, i.micro_batch};
    const Value output{i.unit, i.micro_batch};
    const bool makes_saved = i.op == Op::kForward || i.op == Op::kRecompute;
    // The value that an instruction makes must not lie where one lies that it reads.
    const bool last_use = i.op == Op::kBackward || i.op == Op::kBackwardWeight || !subject_.train;
    if (i.y != -1) RETURN_IF_ERROR(Put(SlotKind::kActivation, i.y, output, i.unit));
    if (i.dx != -1) RETURN_IF_ERROR(Put(SlotKind::kGradient, i.dx, input, i.unit));
    if (i.saved != -1 && makes_saved)
      RETURN_IF_ERROR(Put(SlotKind::kSaved, i.saved, output, i.unit));
    if (i.x != -1) RETURN_IF_ERROR(Take(SlotKind::kActivation, i.x, input, last_use));
    if (i.dy != -1) RETURN_IF_ERROR(Take(SlotKind::kGradient, i.dy, output, last_use));
    if (i.saved != -1) RETURN_IF_ERROR(Take(SlotKind::kSaved, i.saved, output, last_use));
    return absl::OkStatus();
  }

  absl::Status FollowPointToPoint(const Instruction& i) {
    RETURN_IF_ERROR(Operand(SlotKind::kActivation, i.x, i.op == Op::kRecvAct));
    RETURN_IF_ERROR(Operand(SlotKind::kActivation, i.y, i.op == Op::kSendAct));
    RETURN_IF_ERROR(Operand(SlotKind::kGradient, i.dx, i.op == Op::kSendGrad));
    RETURN_IF_ERROR(Operand(SlotKind::kGradient, i.dy, i.op == Op::kRecvGrad));
    RETURN_IF_ERROR(Operand(SlotKind::kSaved, i.saved, false));
    RETURN_IF_ERROR(Operand(SlotKind::kParameters, i.slot, false));
    const Value input{i.unit - 1, i.micro_batch};
    const Value output{i.unit, i.micro_batch};
    switch (i.op) {
      case Op::kSendAct: return Take(SlotKind::kActivation, i.y, output, true);
      case Op::kRecvAct: return Put(SlotKind::kActivation, i.x, input, i.unit);
      case Op::kSendGrad: return Take(SlotKind::kGradient, i.dx, input, true);
      default: return Put(SlotKind::kGradient, i.dy, output, i.unit);
    }
  }

  absl::Status FollowShard(const Instruction& i) {
    const bool parameters = i.op == Op::kGather || i.op == Op::kRelease;
    const bool window = i.op == Op::kClear || i.op == Op::kReduce;
    for (int32_t number : {i.x, i.y})
      RETURN_IF_ERROR(Operand(SlotKind::kActivation, number, false));
    for (int32_t number : {i.dx, i.dy})
      RETURN_IF_ERROR(Operand(SlotKind::kGradient, number, false));
    RETURN_IF_ERROR(Operand(SlotKind::kSaved, i.saved, false));
    const SlotKind kind = window ? SlotKind::kWindow : SlotKind::kParameters;
    const bool used = (parameters && !context_.placement.whole_parameters) ||
                      (window && !context_.WindowsAreSums(subject_.program.stage));
    RETURN_IF_ERROR(Operand(kind, i.slot, used));
    if (!used) return absl::OkStatus();
    const Value value{i.unit, -1};
    const bool opens = i.op == Op::kGather || i.op == Op::kClear;
    return opens ? Put(kind, i.slot, value, i.unit) : Take(kind, i.slot, value, true);
  }

  const Subject& subject_;
  const Context& context_;
  size_t index_ = 0;
  std::unordered_map<int, std::array<int64_t, kNumSlotKinds>> needed_bytes_;  // by unit held
  std::array<std::vector<Slot>, kNumSlotKinds> slots_;
};

}  // namespace

absl::Status CheckSlots(const Subject& subject) { return SlotCheck(subject).Run(); }

}  // namespace esteira::validate
