// The collective algorithms, one file a family, each a blocking function of one member's view of
// the group. Internal to the folder: callers use Collectives.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communication/collectives.h"
#include "worker/communication/deadline.h"
#include "worker/communication/transport.h"

namespace esteira {

// One member's view of one running collective: who takes part, which tag its messages carry, when
// it must have ended.
class Round {
 public:
  Round(Transport& transport, std::span<const int> members, int position, Tag tag,
        absl::Duration timeout)
      : transport_(transport),
        members_(members),
        position_(position),
        tag_(tag),
        deadline_(DeadlineAfter(timeout)) {}

  int size() const { return static_cast<int>(members_.size()); }
  int position() const { return position_; }
  // The member `distance` places further round the circle; negative: back.
  int Neighbour(int distance) const { return Wrap(position_ + distance); }
  int Wrap(int position) const { return (position % size() + size()) % size(); }

  Transfer Send(int position, std::span<std::byte> bytes) const;
  Transfer Receive(int position, std::span<std::byte> bytes) const;
  absl::Status Run(std::span<const Transfer> transfers) const;
  absl::Status RunInSegments(std::span<const Transfer> transfers,
                             const Transport::Arrived& arrived) const;

 private:
  Transport& transport_;
  const std::span<const int> members_;
  const int position_;
  const Tag tag_;
  const Deadline deadline_;
};

// The `index`-th of `pieces` equal parts.
template <typename Element>
std::span<Element> Piece(std::span<Element> buffer, int index, int pieces) {
  const size_t piece = buffer.size() / static_cast<size_t>(pieces);
  return buffer.subspan(piece * static_cast<size_t>(index), piece);
}

// sum[i] += x[i] of bf16.
void AddBf16To(std::span<float> sum, std::span<const uint16_t> x);

// sum[i] += x[i]; of fp32 or of integers, whose sum does not wrap.
template <typename Element>
void AddTo(std::span<Element> sum, std::span<const Element> x);

// Both reductions form piece j as ((x[j+1] + x[j+2]) + ...) + x[j], indexes round the circle: equal
// bits, also of fp32. Element: float or int64_t.
// The direct ones take several buffers through one exchange, each as if alone.
absl::Status DirectAllGather(const Round& round, std::span<const std::span<std::byte>> buffers);
template <typename Element>
absl::Status DirectReduceScatter(const Round& round, std::span<const std::span<Element>> buffers,
                                 std::span<Element> scratch);
absl::Status DirectReduceScatterBf16(const Round& round, std::span<const Bf16Reduction> reductions,
                                     std::span<uint16_t> scratch);
absl::Status DirectBroadcast(const Round& round, std::span<std::byte> buffer, int root);

absl::Status RingAllGather(const Round& round, std::span<std::byte> buffer);
template <typename Element>
absl::Status RingReduceScatter(const Round& round, std::span<Element> buffer,
                               std::span<Element> scratch);
absl::Status RingBroadcast(const Round& round, std::span<std::byte> buffer, int root);

// Of an all-gather: seconds of an empty one, and of each byte of its buffer.
struct TransferCost {
  double latency_seconds = 0;
  double seconds_per_byte = 0;
};
struct GatherCosts {
  TransferCost direct, ring;
};
// Runs some of both; every member gets the same numbers, those of the slowest.
absl::StatusOr<GatherCosts> MeasureGathers(const Round& round);
TransferCost Slower(const TransferCost& a, const TransferCost& b);
bool DirectIsSooner(const GatherCosts& costs, size_t bytes);

absl::Status TreeBroadcast(const Round& round, std::span<std::byte> buffer, int root);
absl::Status TreeBarrier(const Round& round);

}  // namespace esteira
