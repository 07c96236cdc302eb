#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/plan/dependencies.h"
#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "common/plan/validate.h"

namespace esteira {
namespace {

constexpr int64_t kStateTensors = 3;  // master weights, first and second moment

int64_t TotalBytes(const Program& program) {
  int64_t bytes = 0;
  for (const std::vector<SlotClass>& classes : program.slots) {
    for (const SlotClass& slots : classes) bytes += slots.bytes * slots.count;
  }
  return bytes;
}

// Makes the slots of a stage as large as the largest value that either program puts into its class.
class SlotSizes {
 public:
  SlotSizes(const Plan& plan, const std::vector<UnitSpec>& units) : plan_(plan), units_(units) {}

  void Set(Program& train, Program& evaluate) const {
    for (Program* program : {&train, &evaluate}) {
      for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
        const auto slot_kind = static_cast<SlotKind>(kind);
        const bool by_unit = slot_kind != SlotKind::kActivation && slot_kind != SlotKind::kGradient;
        const int64_t bytes = by_unit ? 0 : Needed(0, slot_kind);
        for (SlotClass& slots : program->slots[kind]) slots.bytes = bytes;
      }
    }
    for (const Program* program : {&train, &evaluate}) {
      for (const Instruction& i : program->instructions) {
        if (i.saved >= 0) Raise(train, SlotKind::kSaved, i.saved, i.unit);
        if (i.slot < 0) continue;
        const bool window = i.op == Op::kClear || i.op == Op::kReduce;
        Raise(train, window ? SlotKind::kWindow : SlotKind::kParameters, i.slot, i.unit);
      }
    }
    evaluate.slots = train.slots;
  }

 private:
  int64_t Needed(int unit, SlotKind kind) const {
    return SlotBytes(plan_.model, plan_.layout, plan_.precision, units_[static_cast<size_t>(unit)],
                     kind);
  }

  void Raise(Program& program, SlotKind kind, int32_t number, int unit) const {
    for (SlotClass& slots : program.slots[static_cast<size_t>(kind)]) {
      if (number < slots.count) {
        slots.bytes = std::max(slots.bytes, Needed(unit, kind));
        return;
      }
      number -= slots.count;
    }
  }

  const Plan& plan_;
  const std::vector<UnitSpec>& units_;
};

int64_t WorkspaceBytes(const Plan& plan, const std::vector<UnitSpec>& units,
                       const std::vector<int>& held) {
  const Layout& layout = plan.layout;
  int64_t compute = 0;
  int64_t reduce = 0;
  for (int index : held) {
    const UnitSpec& unit = units[static_cast<size_t>(index)];
    const int64_t padded = ShardMap(unit.flat_elements, layout.replicas).padded_elements();
    reduce = std::max(reduce, ReduceScratchBytes(padded, layout.replicas, layout.numerics));
    if (unit.kind == UnitKind::kTied) continue;
    compute = std::max(compute, WorkspaceLayout(plan.model, unit, layout.micro_batch_size,
                                                layout.sequence_length, plan.precision)
                                    .bytes);
  }
  return compute + reduce + GradientScratchBytes(units, held, layout);
}

}  // namespace

MemoryUse CountStates(const std::vector<UnitSpec>& units, const std::vector<int>& held,
                      const Layout& layout, Precision precision) {
  const Placement placement = PlacementOf(layout.zero);
  MemoryUse use;
  for (int index : held) {
    const UnitSpec& unit = units[static_cast<size_t>(index)];
    const ShardMap map(unit.flat_elements, layout.replicas);
    const auto elements = [&map](bool whole) {
      return whole ? map.padded_elements() : map.shard_elements();
    };
    if (ParametersUnit(units, held, index) == index) {
      use.parameters += elements(placement.whole_parameters) * BytesOf(precision);
    }
    use.gradients += elements(placement.whole_sums) * BytesOf(SumType(layout.numerics));
    if (unit.owner == -1) {
      use.optimizer +=
          elements(placement.whole_states) * kStateTensors * BytesOf(ElementType::kFp32);
    }
  }
  return use;
}

int64_t GradientScratchBytes(const std::vector<UnitSpec>& units, const std::vector<int>& held,
                             const Layout& layout) {
  if (layout.numerics == Numerics::kFast) return 0;
  int64_t elements = 0;
  for (int index : held) {
    int64_t used_at_once = 0;
    for (int used : units[static_cast<size_t>(index)].uses) {
      used_at_once += ShardMap(units[static_cast<size_t>(used)].flat_elements, layout.replicas)
                          .padded_elements();
    }
    elements = std::max(elements, used_at_once);
  }
  return elements * BytesOf(ElementType::kFp32);
}

MemoryUse CountMemory(const Plan& plan, const Program& train) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  MemoryUse use = CountStates(units, train.units, plan.layout, plan.precision);
  use.slots = TotalBytes(train);
  use.workspace = WorkspaceBytes(plan, units, train.units);
  return use;
}

absl::Status ValidateMemory(const Plan& plan, const std::vector<int64_t>& budget_bytes) {
  if (budget_bytes.size() != plan.train.size()) {
    return absl::InvalidArgumentError(absl::StrCat("memory: expected a budget for each of ",
                                                   plan.train.size(), " stages, found ",
                                                   budget_bytes.size()));
  }
  for (size_t stage = 0; stage < plan.train.size(); ++stage) {
    const MemoryUse use = CountMemory(plan, plan.train[stage]);
    if (use.total() <= budget_bytes[stage]) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: stage ", stage, ": expected at most ", budget_bytes[stage],
                     " bytes a rank, found ", use.total(), " (parameters ", use.parameters,
                     ", gradients ", use.gradients, ", optimizer ", use.optimizer, ", slots ",
                     use.slots, ", workspace ", use.workspace, ")"));
  }
  return absl::OkStatus();
}

void SizeSlots(Plan& plan) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  const SlotSizes sizes(plan, units);
  for (size_t stage = 0; stage < plan.train.size(); ++stage) {
    sizes.Set(plan.train[stage], plan.evaluate[stage]);
  }
}

}  // namespace esteira
