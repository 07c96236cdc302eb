#include "worker/engine/memory.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/plan/validate.h"
#include "worker/engine/norm.h"

namespace esteira {
namespace {

absl::StatusOr<Buffer> Allocate(Device& device, int64_t bytes, MemoryKind kind) {
  if (bytes == 0) return Buffer();
  return device.Allocate(bytes, kind);
}

absl::StatusOr<FlatPart> AllocatePart(Device& device, const Range& range, ElementType type,
                                      MemoryKind kind) {
  ASSIGN_OR_RETURN(Buffer storage, device.Allocate(range.size() * BytesOf(type), kind));
  return FlatPart(std::move(storage), range, type);
}

bool Holds(const Program& program, int unit) {
  return std::binary_search(program.units.begin(), program.units.end(), unit);
}

// An alias computes with the parameters of its owner.
absl::Status AllocateUnit(const UnitSpec& unit, bool alias, const Placement& placement,
                          const Plan& plan, Device& device, UnitMemory& memory) {
  if (!alias) {
    const Range& range = placement.whole_parameters ? memory.whole : memory.own;
    ASSIGN_OR_RETURN(memory.parameters, AllocatePart(device, range, ComputeType(plan.precision),
                                                     MemoryKind::kParameters));
  }
  ASSIGN_OR_RETURN(memory.sums,
                   AllocatePart(device, placement.whole_sums ? memory.whole : memory.own,
                                SumType(plan.layout.numerics), MemoryKind::kGradients));
  if (unit.owner >= 0) return absl::OkStatus();
  for (FlatPart* part : {&memory.master, &memory.m, &memory.v}) {
    ASSIGN_OR_RETURN(
        *part, AllocatePart(device, memory.valid, ElementType::kFp32, MemoryKind::kOptimizer));
  }
  return absl::OkStatus();
}

}  // namespace

UnitMemory::UnitMemory(const UnitSpec& unit, const Placement& placement, int replicas, int replica)
    : map(unit.flat_elements, replicas),
      whole({0, map.padded_elements()}),
      own(map.Shard(replica)),
      valid(placement.whole_states ? whole : own) {}

absl::StatusOr<std::unique_ptr<RankMemory>> RankMemory::Make(const Plan& plan,
                                                             const std::vector<UnitSpec>& units,
                                                             int rank, Device& device) {
  const Layout& layout = plan.layout;
  const Program& program = plan.train[static_cast<size_t>(layout.StageOfRank(rank))];
  const Placement placement = PlacementOf(layout.zero);
  std::unique_ptr<RankMemory> memory(new RankMemory());
  memory->units_.resize(units.size());
  for (int index : program.units) {
    const UnitSpec& unit = units[static_cast<size_t>(index)];
    if (unit.flat_elements == 0) continue;
    auto& slot = memory->units_[static_cast<size_t>(index)];
    slot =
        std::make_unique<UnitMemory>(unit, placement, layout.replicas, layout.ReplicaOfRank(rank));
    const bool alias = unit.owner >= 0 && Holds(program, unit.owner);
    RETURN_IF_ERROR(AllocateUnit(unit, alias, placement, plan, device, *slot));
  }
  RETURN_IF_ERROR(memory->AllocateSlots(program, device));
  RETURN_IF_ERROR(memory->AllocateScratch(plan, units, program, device));
  RETURN_IF_ERROR(memory->AllocateSmall(plan, program, device));
  return memory;
}

absl::Status RankMemory::AllocateSlots(const Program& program, Device& device) {
  for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
    int64_t end = 0;
    for (const SlotClass& slots : program.slots[kind]) {
      for (int32_t slot = 0; slot < slots.count; ++slot) {
        slot_offsets_[kind].push_back(end);
        end += slots.bytes;
      }
    }
    ASSIGN_OR_RETURN(slots_[kind], Allocate(device, end, MemoryKind::kSlots));
  }
  return absl::OkStatus();
}

absl::Status RankMemory::AllocateScratch(const Plan& plan, const std::vector<UnitSpec>& units,
                                         const Program& program, Device& device) {
  int64_t workspace_bytes = 0;
  int64_t reduce_bytes = 0;
  for (int index : program.units) {
    const UnitSpec& unit = units[static_cast<size_t>(index)];
    const BufferLayout workspace = WorkspaceLayout(plan.model, unit, plan.layout.micro_batch_size,
                                                   plan.layout.sequence_length, plan.precision);
    workspace_bytes = std::max(workspace_bytes, workspace.bytes);
    const ShardMap map(unit.flat_elements, plan.layout.replicas);
    reduce_bytes = std::max(
        reduce_bytes,
        ReduceScratchBytes(map.padded_elements(), plan.layout.replicas, plan.layout.numerics));
  }
  ASSIGN_OR_RETURN(workspace_, Allocate(device, workspace_bytes, MemoryKind::kWorkspace));
  ASSIGN_OR_RETURN(reduce_scratch_, Allocate(device, reduce_bytes, MemoryKind::kWorkspace));
  const int64_t gradient_bytes = GradientScratchBytes(units, program.units, plan.layout);
  ASSIGN_OR_RETURN(gradient_, Allocate(device, gradient_bytes, MemoryKind::kWorkspace));
  return absl::OkStatus();
}

absl::Status RankMemory::AllocateSmall(const Plan& plan, const Program& program, Device& device) {
  const auto allocate = [&](Buffer& buffer, size_t bytes) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, Allocate(device, static_cast<int64_t>(bytes), MemoryKind::kOther));
    return absl::OkStatus();
  };
  const int head = NumComputeUnits(plan.model) - 1;
  const auto micro_batches = static_cast<size_t>(plan.layout.num_micro_batches());
  sample_elements_ =
      static_cast<size_t>(plan.layout.micro_batch_size * plan.layout.sequence_length);
  if (Holds(program, 0) || Holds(program, head)) {
    RETURN_IF_ERROR(allocate(tokens_, micro_batches * sample_elements_ * sizeof(int32_t)));
    RETURN_IF_ERROR(allocate(targets_, micro_batches * sample_elements_ * sizeof(int32_t)));
  }
  if (Holds(program, head)) RETURN_IF_ERROR(allocate(losses_, micro_batches * sizeof(LossSums)));
  int64_t largest_shard = 0;
  for (const auto& unit : units_) {
    if (unit != nullptr) largest_shard = std::max(largest_shard, unit->own.size());
  }
  RETURN_IF_ERROR(
      allocate(blocks_, static_cast<size_t>(largest_shard / kBlockElements) * sizeof(double)));
  RETURN_IF_ERROR(allocate(flags_, program.instructions.size() * sizeof(int32_t)));
  RETURN_IF_ERROR(allocate(refusals_, program.instructions.size() * sizeof(int32_t)));
  RETURN_IF_ERROR(allocate(
      norm_words_, static_cast<size_t>(plan.layout.num_ranks()) * kNormWords * sizeof(int64_t)));
  if (!plan.model.tie_embeddings) return absl::OkStatus();
  const UnitMemory* owner = unit(TiedEmbeddingEnd(plan.model));
  if (owner == nullptr || unit(TiedHeadEnd(plan.model)) != nullptr) return absl::OkStatus();
  return allocate(tie_piece_,
                  static_cast<size_t>(std::min(owner->sums.range().size(), kTiePieceElements) *
                                      BytesOf(SumType(plan.layout.numerics))));
}

std::byte* RankMemory::Slot(SlotKind kind, int index) const {
  const auto k = static_cast<size_t>(kind);
  return slots_[k].data() + slot_offsets_[k][static_cast<size_t>(index)];
}

std::span<int32_t> RankMemory::SampleRows(const Buffer& buffer, int index) const {
  return Span<int32_t>(buffer).subspan(static_cast<size_t>(index) * sample_elements_,
                                       sample_elements_);
}

}  // namespace esteira
