// Buffers get numbers: a value takes a slot where it is made and gives it back after its last use,
// in program order. Where it takes less memory, slots come in classes by size: a small value never
// lies in a slot of more than twice its size, so that logits do not make every slot as large as
// they are. Within a class the slot that has been free the longest is taken again, so that a writer
// seldom waits for the last reader, and there are as many as values are alive at once, so peak
// memory is exact.
#include <algorithm>
#include <deque>
#include <functional>
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

// By kind and size class.
using SlotCounts = std::array<std::vector<int32_t>, kNumSlotKinds>;

enum class Sizes : uint8_t { kOne, kSeveral };

// The size classes of one kind on one stage, and the class of each unit's values.
class SizeClasses {
 public:
  // `bytes_of_unit` 0: the unit has no value of this kind.
  SizeClasses(const std::vector<int64_t>& bytes_of_unit, Sizes kind) {
    std::vector<int64_t> sizes = bytes_of_unit;
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    for (int64_t size : sizes) {
      if (size == 0) break;
      const bool opens =
          largest_.empty() || (kind == Sizes::kSeveral && OpensSizeClass(size, largest_.back()));
      if (opens) largest_.push_back(size);
    }
    for (int64_t size : bytes_of_unit) {
      size_t fitting = 0;
      while (fitting + 1 < largest_.size() && largest_[fitting + 1] >= size) ++fitting;
      class_of_unit_.push_back(size > 0 ? static_cast<int>(fitting) : -1);
    }
  }

  size_t size() const { return largest_.size(); }
  int64_t Bytes(const std::vector<int32_t>& counts) const {
    return std::inner_product(counts.begin(), counts.end(), largest_.begin(), int64_t{0});
  }
  // -1: the unit has no value of this kind.
  int ClassOf(int unit) const { return class_of_unit_[static_cast<size_t>(unit)]; }

 private:
  std::vector<int64_t> largest_;  // descending
  std::vector<int> class_of_unit_;
};

// The slots of one kind and class.
class Pool {
 public:
  // The numbers of its `count` slots start at `first`; it grows when they are not enough.
  Pool(int first, int count) : first_(first), count_(count), free_(static_cast<size_t>(count)) {
    std::iota(free_.begin(), free_.end(), first);
  }

  int Take(const Value& value) {
    int slot = first_ + count_;
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
  const int first_;
  int count_;
  std::deque<int> free_;
  std::map<Value, int> live_;
};

// Numbers the slots of one program. An activation is named by the unit that reads it, a gradient by
// the unit that makes it (dx), `saved` by its unit.
class SlotPass {
 public:
  SlotPass(const Plan& plan, const Program& program, const std::vector<SizeClasses>& classes,
           bool train)
      : train_(train),
        window_slots_(HasWindowSlots(plan.layout, program.stage)),
        gathers_slots_(!PlacementOf(plan.layout.zero).whole_parameters),
        head_(NumComputeUnits(plan.model) - 1),
        recompute_(plan.layout.policy(program.stage).recompute),
        classes_(classes) {}

  // The pools start with `counts`, and grow when those are not enough. Returns how many slots there
  // are in the end.
  SlotCounts Run(Program& program, const SlotCounts& counts) {
    pools_ = {};
    for (size_t kind = 0; kind < pools_.size(); ++kind) {
      int first = 0;
      for (size_t c = 0; c < classes_[kind].size(); ++c) {
        const int32_t count = counts[kind].empty() ? 0 : counts[kind][c];
        pools_[kind].emplace_back(first, count);
        first += count;
      }
    }
    for (Instruction& instruction : program.instructions) Number(instruction);
    SlotCounts needed;
    for (size_t kind = 0; kind < pools_.size(); ++kind) {
      for (const Pool& pool : pools_[kind]) {
        CHECK(pool.empty());
        needed[kind].push_back(pool.count());
      }
    }
    return needed;
  }

 private:
  // Activations and gradients are of one size.
  Pool& pool(SlotKind kind) { return pools_[static_cast<size_t>(kind)].front(); }
  Pool& PoolOf(SlotKind kind, int unit) {
    const auto k = static_cast<size_t>(kind);
    return pools_[k][static_cast<size_t>(classes_[k].ClassOf(unit))];
  }
  bool Keeps(int unit) const {
    return classes_[static_cast<size_t>(SlotKind::kSaved)].ClassOf(unit) >= 0;
  }
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
    if (Keeps(f.unit) && !Recomputes(f.unit))
      f.saved = PoolOf(SlotKind::kSaved, f.unit).Take(At(f));
    if (train_) return;
    if (f.unit > 0) activations.Give(At(f));
    if (f.saved >= 0) PoolOf(SlotKind::kSaved, f.unit).Give(At(f));
  }

  void Recompute(Instruction& r) {
    r.x = pool(SlotKind::kActivation).Find(At(r));
    if (Keeps(r.unit)) r.saved = PoolOf(SlotKind::kSaved, r.unit).Take(At(r));
  }

  void Backward(Instruction& b) {
    Pool& activations = pool(SlotKind::kActivation);
    Pool& gradients = pool(SlotKind::kGradient);
    const bool makes_input = b.op != Op::kBackwardWeight;
    if (b.unit > 0) b.x = activations.Find(At(b));
    if (b.unit < head_) b.dy = gradients.Find(At(b, 1));
    if (b.unit > 0 && makes_input) b.dx = gradients.Take(At(b));
    if (Keeps(b.unit)) b.saved = PoolOf(SlotKind::kSaved, b.unit).Find(At(b));
    if (b.op == Op::kBackwardInput) return;
    if (b.unit > 0) activations.Give(At(b));
    if (b.unit < head_) gradients.Give(At(b, 1));
    if (b.saved >= 0) PoolOf(SlotKind::kSaved, b.unit).Give(At(b));
  }

  void Shard(Instruction& instruction) {
    const bool window = instruction.op == Op::kClear || instruction.op == Op::kReduce;
    if (!(window ? window_slots_ : gathers_slots_)) return;
    Pool& slots = PoolOf(window ? SlotKind::kWindow : SlotKind::kParameters, instruction.unit);
    const bool opens = instruction.op == Op::kClear || instruction.op == Op::kGather;
    instruction.slot = opens ? slots.Take(At(instruction)) : slots.Give(At(instruction));
  }

  const bool train_;
  const bool window_slots_;
  const bool gathers_slots_;
  const int head_;
  const bool recompute_;
  const std::vector<SizeClasses>& classes_;             // by kind
  std::array<std::vector<Pool>, kNumSlotKinds> pools_;  // by kind and class
};

void RaiseTo(const SlotCounts& others, SlotCounts& counts) {
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    for (size_t c = 0; c < counts[kind].size(); ++c) {
      counts[kind][c] = std::max(counts[kind][c], others[kind][c]);
    }
  }
}

// By kind.
std::vector<SizeClasses> ClassesOf(const Plan& plan, const std::vector<UnitSpec>& units,
                                   const Program& program, Sizes sizes) {
  std::vector<SizeClasses> classes;
  for (int kind = 0; kind < kNumSlotKinds; ++kind) {
    std::vector<int64_t> bytes(units.size(), 0);
    for (int held : program.units) {
      const auto unit = static_cast<size_t>(held);
      bytes[unit] = SlotBytes(plan.model, plan.layout, plan.precision, units[unit],
                              static_cast<SlotKind>(kind));
    }
    classes.emplace_back(bytes, sizes);
  }
  return classes;
}

// As many slots as the program of the two that needs more has.
SlotCounts Count(const Plan& plan, Program train, Program evaluate,
                 const std::vector<SizeClasses>& classes) {
  SlotCounts counts = SlotPass(plan, train, classes, true).Run(train, {});
  RaiseTo(SlotPass(plan, evaluate, classes, false).Run(evaluate, {}), counts);
  return counts;
}

// Both programs of a stage run in the same slots. They are numbered when it is known how many there
// are, so that a slot is not taken twice while others were never used.
void NumberSlots(const Plan& plan, const std::vector<UnitSpec>& units, Program& train,
                 Program& evaluate) {
  std::vector<SizeClasses> classes = ClassesOf(plan, units, train, Sizes::kOne);
  SlotCounts counts = Count(plan, train, evaluate, classes);
  const std::vector<SizeClasses> several = ClassesOf(plan, units, train, Sizes::kSeveral);
  const SlotCounts counts_of_several = Count(plan, train, evaluate, several);
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    if (several[kind].Bytes(counts_of_several[kind]) >= classes[kind].Bytes(counts[kind])) continue;
    classes[kind] = several[kind];
    counts[kind] = counts_of_several[kind];
  }
  SlotPass(plan, train, classes, true).Run(train, counts);
  SlotPass(plan, evaluate, classes, false).Run(evaluate, counts);
  for (Program* program : {&train, &evaluate}) {
    for (size_t kind = 0; kind < counts.size(); ++kind) {
      program->slots[kind].clear();
      for (int32_t count : counts[kind]) {
        if (count > 0) program->slots[kind].push_back({0, count});
      }
    }
  }
}

}  // namespace

absl::StatusOr<Plan> Slots(Plan plan) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (size_t stage = 0; stage < plan.train.size(); ++stage) {
    NumberSlots(plan, units, plan.train[stage], plan.evaluate[stage]);
  }
  SizeSlots(plan);
  return plan;
}

}  // namespace esteira
