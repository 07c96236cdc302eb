#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/tensor.h"

namespace esteira {

// Gradient sums travel between the ends of a tied table in pieces: they bound its scratch, whatever
// the table's size.
inline constexpr int64_t kTiePieceElements = int64_t{1} << 20;

// The elements `range` of a unit's flat buffer, in device memory: the whole or one shard. Elements
// are named by their index in the flat buffer, so that whoever uses a part need not know which of
// the two it is.
class FlatPart {
 public:
  FlatPart() = default;
  FlatPart(Buffer storage, const Range& range, ElementType type)
      : storage_(std::move(storage)), range_(range), type_(type) {}

  const Range& range() const { return range_; }
  std::byte* data() const { return storage_.data(); }
  Tensor All() const { return Elements(range_); }
  // `part` lies within range().
  Tensor Elements(const Range& part) const {
    return {data() + (part.begin - range_.begin) * BytesOf(type_), type_, part.size(), 1};
  }

 private:
  Buffer storage_;
  Range range_;
  ElementType type_ = ElementType::kFp32;
};

// What one rank holds of one unit with parameters.
struct UnitMemory {
  UnitMemory(const UnitSpec& unit, const Placement& placement, int replicas, int replica);

  ShardMap map;
  Range whole;
  Range own;    // this replica's shard
  Range valid;  // of the sums, after REDUCE: the whole when every replica updates all of it, else
                // its shard
  FlatPart parameters;    // empty when the rank also holds the owner of this end of the tied table
  FlatPart sums;          // of gradients, in SumType of the plan's numerics
  FlatPart master, m, v;  // empty for a tied table's head end
};

// All memory of one rank: parameters, gradient sums, optimizer state, slots, workspace, and the
// small buffers of a step. Allocated once; counted by MemoryKind exactly as the plan's MemoryUse
// counts it (small things are kOther). Owns the buffers; the device outlives it. Not thread-safe,
// and holds no state of a step.
class RankMemory {
 public:
  static absl::StatusOr<std::unique_ptr<RankMemory>> Make(const Plan& plan,
                                                          const std::vector<UnitSpec>& units,
                                                          int rank, Device& device);

  // Null for a unit that this rank does not hold, or that has no parameters.
  UnitMemory* unit(int index) const { return units_[static_cast<size_t>(index)].get(); }
  std::byte* Slot(SlotKind kind, int index) const;
  std::byte* workspace() const { return workspace_.data(); }
  std::span<std::byte> reduce_scratch() const {
    return {reduce_scratch_.data(), static_cast<size_t>(reduce_scratch_.bytes())};
  }

  // int32 inputs and targets of micro-batch `index`: [micro_batch_size, sequence_length].
  std::span<int32_t> Tokens(int index) const { return SampleRows(tokens_, index); }
  std::span<int32_t> Targets(int index) const { return SampleRows(targets_, index); }
  // By micro-batch.
  std::span<LossSums> losses() const { return Span<LossSums>(losses_); }
  // By instruction of the train program: whether its output holds a non-finite value.
  std::span<int32_t> flags() const { return Span<int32_t>(flags_); }
  // By instruction: whether fixed point refused a part of its gradient.
  std::span<int32_t> refusals() const { return Span<int32_t>(refusals_); }
  // Room for the fp32 gradient of one (unit, micro-batch), of GradientScratchBytes.
  std::span<float> gradient() const { return Span<float>(gradient_); }
  // A double for each block of the largest shard.
  std::span<double> blocks() const { return Span<double>(blocks_); }
  // One contribution to NORM for each rank.
  std::span<int64_t> norm_words() const { return Span<int64_t>(norm_words_); }
  // Where a piece of the other end's gradient sums arrives.
  std::byte* tie_piece() const { return tie_piece_.data(); }

 private:
  RankMemory() = default;
  template <typename T>
  static std::span<T> Span(const Buffer& buffer) {
    return {reinterpret_cast<T*>(buffer.data()), static_cast<size_t>(buffer.bytes()) / sizeof(T)};
  }
  std::span<int32_t> SampleRows(const Buffer& buffer, int index) const;

  absl::Status AllocateSlots(const Program& program, Device& device);
  absl::Status AllocateScratch(const Plan& plan, const std::vector<UnitSpec>& units,
                               const Program& program, Device& device);
  absl::Status AllocateSmall(const Plan& plan, const Program& program, Device& device);

  std::vector<std::unique_ptr<UnitMemory>> units_;  // by unit
  std::array<Buffer, kNumSlotKinds> slots_;
  std::array<std::vector<int64_t>, kNumSlotKinds> slot_offsets_;  // in bytes, by slot
  Buffer workspace_, reduce_scratch_, gradient_;
  Buffer tokens_, targets_, losses_, flags_, refusals_, blocks_, norm_words_, tie_piece_;
  size_t sample_elements_ = 0;  // of one micro-batch
};

}  // namespace esteira
