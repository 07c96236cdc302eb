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

// Both programs run in the same buffers.
int64_t SlotBytes(const Program& train, const Program& evaluate) {
  int64_t bytes = 0;
  for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
    const SlotClass& a = train.slots[kind];
    const SlotClass& b = evaluate.slots[kind];
    bytes += std::max(a.bytes, b.bytes) * std::max(a.count, b.count);
  }
  return bytes;
}

int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void SizeSlotsOf(const Plan& plan, const std::vector<UnitSpec>& units, Program& program) {
  const Layout& layout = plan.layout;
  const int64_t activation = RoundUp(layout.micro_batch_size * layout.sequence_length *
                                     plan.model.hidden_size * BytesOf(plan.precision));
  int64_t saved = 0;
  int64_t padded = 0;
  for (int held : program.units) {
    const UnitSpec& unit = units[static_cast<size_t>(held)];
    padded = std::max(padded, ShardMap(unit.flat_elements, layout.replicas).padded_elements());
    if (unit.kind == UnitKind::kTied) continue;
    saved = std::max(saved, SavedLayout(plan.model, unit, layout.micro_batch_size,
                                        layout.sequence_length, plan.precision)
                                .bytes);
  }
  const auto bytes = [&](SlotKind kind) -> int64_t& {
    return program.slots[static_cast<size_t>(kind)].bytes;
  };
  bytes(SlotKind::kActivation) = activation;
  bytes(SlotKind::kGradient) = activation;
  bytes(SlotKind::kSaved) = saved;
  bytes(SlotKind::kParameters) = padded * BytesOf(plan.precision);
  bytes(SlotKind::kWindow) = padded * BytesOf(SumType(layout.numerics));
}

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

MemoryUse CountMemory(const Plan& plan, const Program& train, const Program& evaluate) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  MemoryUse use = CountStates(units, train.units, plan.layout, plan.precision);
  use.slots = SlotBytes(train, evaluate);
  use.workspace = WorkspaceBytes(plan, units, train.units);
  return use;
}

absl::Status ValidateMemory(const Plan& plan, const std::vector<int64_t>& budget_bytes) {
  if (budget_bytes.size() != plan.train.size()) {
    return absl::InvalidArgumentError(absl::StrCat("memory: expected a budget for each of ",
                                                   plan.train.size(), " ranks, found ",
                                                   budget_bytes.size()));
  }
  for (size_t rank = 0; rank < plan.train.size(); ++rank) {
    const MemoryUse use = CountMemory(plan, plan.train[rank], plan.evaluate[rank]);
    if (use.total() <= budget_bytes[rank]) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: rank ", rank, ": expected at most ", budget_bytes[rank], " bytes, found ",
        use.total(), " (parameters ", use.parameters, ", gradients ", use.gradients, ", optimizer ",
        use.optimizer, ", slots ", use.slots, ", workspace ", use.workspace, ")"));
  }
  return absl::OkStatus();
}

void SizeSlots(Plan& plan) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) SizeSlotsOf(plan, units, program);
  }
}

}  // namespace esteira
