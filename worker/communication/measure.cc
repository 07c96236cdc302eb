// What all-gathers cost among the members of a group, measured by running them.
#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"

namespace esteira {
namespace {

using Gather = absl::Status (*)(const Round& round, std::span<std::byte> buffer);

constexpr size_t kSmallPiece = 1 << 10;
constexpr size_t kLargePiece = 256 << 10;
constexpr int kTurns = 3;  // of which the quickest counts: the others had to wait for a processor

absl::Status GatherDirectly(const Round& round, std::span<std::byte> buffer) {
  return DirectAllGather(round, std::span(&buffer, 1));
}

absl::StatusOr<double> QuickestSeconds(const Round& round, Gather gather,
                                       std::span<std::byte> buffer) {
  double quickest = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < kTurns; ++turn) {
    RETURN_IF_ERROR(TreeBarrier(round));
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(gather(round, buffer));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    quickest = std::min(quickest, seconds.count());
  }
  return quickest;
}

absl::StatusOr<TransferCost> CostOf(const Round& round, Gather gather,
                                    std::span<std::byte> buffer) {
  const size_t small = kSmallPiece * static_cast<size_t>(round.size());
  ASSIGN_OR_RETURN(const double least, QuickestSeconds(round, gather, buffer.first(small)));
  ASSIGN_OR_RETURN(const double most, QuickestSeconds(round, gather, buffer));
  const auto further = static_cast<double>(buffer.size() - small);
  return TransferCost{least, std::max(0.0, most - least) / further};
}

}  // namespace

absl::StatusOr<GatherCosts> MeasureGathers(const Round& round) {
  const auto n = static_cast<size_t>(round.size());
  std::vector<std::byte> buffer(n * kLargePiece);
  GatherCosts own;
  ASSIGN_OR_RETURN(own.direct, CostOf(round, GatherDirectly, buffer));
  ASSIGN_OR_RETURN(own.ring, CostOf(round, RingAllGather, buffer));
  std::vector<GatherCosts> all(n);
  all[static_cast<size_t>(round.position())] = own;
  RETURN_IF_ERROR(GatherDirectly(round, std::as_writable_bytes(std::span(all))));
  for (const GatherCosts& costs : all) {
    own.direct = Slower(own.direct, costs.direct);
    own.ring = Slower(own.ring, costs.ring);
  }
  return own;
}

TransferCost Slower(const TransferCost& a, const TransferCost& b) {
  return {std::max(a.latency_seconds, b.latency_seconds),
          std::max(a.seconds_per_byte, b.seconds_per_byte)};
}

bool DirectIsSooner(const GatherCosts& costs, size_t bytes) {
  const auto seconds = [bytes](const TransferCost& cost) {
    return cost.latency_seconds + cost.seconds_per_byte * static_cast<double>(bytes);
  };
  return seconds(costs.direct) <= seconds(costs.ring);
}

}  // namespace esteira
