#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
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
  bool live = false;
  Value value;
};

std::string Describe(SlotKind kind, const Value& value) {
  std::string text = absl::StrCat(SlotKindName(kind), " of unit ", value.unit);
  if (value.micro_batch != -1) absl::StrAppend(&text, ", micro-batch ", value.micro_batch);
  return text;
}

// Bytes that one slot of a class must have at least on the rank of `program`.
int64_t NeededBytes(const Context& context, const Program& program, SlotKind kind) {
  const Layout& layout = context.plan.layout;
  int64_t saved = 0;
  int64_t padded = 0;
  for (int held : program.units) {
    const UnitSpec& unit = context.unit(held);
    padded = std::max(padded, ShardMap(unit.flat_elements, layout.replicas).padded_elements());
    if (unit.kind == UnitKind::kTied) continue;
    saved = std::max(saved, SavedLayout(context.plan.model, unit, layout.micro_batch_size,
                                        layout.sequence_length, context.plan.precision)
                                .bytes);
  }
  switch (kind) {
    case SlotKind::kActivation:
    case SlotKind::kGradient:
      return layout.micro_batch_size * layout.sequence_length * context.plan.model.hidden_size *
             BytesOf(context.plan.precision);
    case SlotKind::kSaved: return saved;
    case SlotKind::kParameters: return padded * BytesOf(context.plan.precision);
    case SlotKind::kWindow: return padded * BytesOf(SumType(layout.numerics));
  }
  return 0;
}

// Follows what is in each slot through a program. The dependencies keep any execution equal to this
// one.
class SlotCheck {
 public:
  explicit SlotCheck(const Subject& subject) : subject_(subject), context_(subject.context) {
    for (int unit = 0; unit < context_.num_items(); ++unit) {
      keeps_.push_back(context_.Holds(subject_.program, unit) &&
                       SavedLayout(context_.plan.model, context_.unit(unit),
                                   context_.plan.layout.micro_batch_size,
                                   context_.plan.layout.sequence_length, context_.plan.precision)
                               .bytes > 0);
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
    // No more slots than instructions: what has more is damaged.
    const auto most = static_cast<int64_t>(subject_.program.instructions.size());
    for (size_t kind = 0; kind < slots_.size(); ++kind) {
      const SlotClass& slots = subject_.program.slots[kind];
      const auto slot_kind = static_cast<SlotKind>(kind);
      const int64_t needed =
          slots.count == 0 ? 0 : NeededBytes(context_, subject_.program, slot_kind);
      if (slots.count < 0 || slots.count > most || slots.bytes < needed) {
        return Fault(
            kCheck, subject_,
            absl::StrCat("0 to ", most, " ", SlotKindName(slot_kind), " slots of at least ", needed,
                         " bytes, found ", slots.count, " of ", slots.bytes));
      }
      slots_[kind].resize(static_cast<size_t>(slots.count));
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

  absl::Status Put(SlotKind kind, int32_t number, Value value) {
    Slot& slot = At(kind, number);
    if (slot.live) {
      return Wrong(absl::StrCat(SlotKindName(kind), " slot ", number, " to be free, found ",
                                Describe(kind, slot.value)));
    }
    slot = {true, value};
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
    const bool saves = keeps_[static_cast<size_t>(i.unit)] && !(forward && Recomputed(i.unit));
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
    if (i.y != -1) RETURN_IF_ERROR(Put(SlotKind::kActivation, i.y, output));
    if (i.dx != -1) RETURN_IF_ERROR(Put(SlotKind::kGradient, i.dx, input));
    if (i.saved != -1 && makes_saved) RETURN_IF_ERROR(Put(SlotKind::kSaved, i.saved, output));
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
      case Op::kRecvAct: return Put(SlotKind::kActivation, i.x, input);
      case Op::kSendGrad: return Take(SlotKind::kGradient, i.dx, input, true);
      default: return Put(SlotKind::kGradient, i.dy, output);
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
    return opens ? Put(kind, i.slot, value) : Take(kind, i.slot, value, true);
  }

  const Subject& subject_;
  const Context& context_;
  size_t index_ = 0;
  std::vector<bool> keeps_;  // by unit: whether it has anything to save
  std::array<std::vector<Slot>, kNumSlotKinds> slots_;
};

}  // namespace

absl::Status CheckSlots(const Subject& subject) { return SlotCheck(subject).Run(); }

}  // namespace esteira::validate
