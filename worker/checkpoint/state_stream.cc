#include "worker/checkpoint/state_stream.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/checkpoint/tags.h"

namespace esteira {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;  // 1 MiB

Tag TagOf(int unit, int buffer) {
  return {kCheckpointStateTag, static_cast<uint32_t>(unit), static_cast<uint32_t>(buffer)};
}

}  // namespace

std::span<float> StateBuffer(const UnitState& state, int buffer) {
  return buffer == 0 ? state.master : buffer == 1 ? state.m : state.v;
}

StateStream::StateStream(Transport& transport, std::vector<int> ranks, int replica,
                         absl::Duration timeout)
    : transport_(transport), ranks_(std::move(ranks)), replica_(replica), timeout_(timeout) {}

absl::Status StateStream::Move(const UnitState& state, int buffer, const ShardMap& shards,
                               const Consumer& consume) {
  if (replica_ != 0) return Send(state, buffer);
  consume(state.begin, StateBuffer(state, buffer));
  for (int replica = 1; replica < shards.replicas(); ++replica) {
    RETURN_IF_ERROR(Receive(state.unit, buffer, replica, shards.Valid(replica), consume));
  }
  return absl::OkStatus();
}

absl::Status StateStream::Send(const UnitState& state, int buffer) {
  const std::span<float> values = StateBuffer(state, buffer);
  for (size_t begin = 0; begin < values.size(); begin += kPieceElements) {
    const size_t count = std::min(static_cast<size_t>(kPieceElements), values.size() - begin);
    const Transfer transfer{Transfer::Direction::kSend, ranks_.front(), TagOf(state.unit, buffer),
                            std::as_writable_bytes(values.subspan(begin, count))};
    RETURN_IF_ERROR(transport_.Run(std::span<const Transfer>(&transfer, 1), timeout_));
  }
  return absl::OkStatus();
}

absl::Status StateStream::Receive(int unit, int buffer, int replica, const Range& valid,
                                  const Consumer& consume) {
  for (int64_t begin = valid.begin; begin < valid.end; begin += kPieceElements) {
    piece_.resize(static_cast<size_t>(std::min(kPieceElements, valid.end - begin)));
    const Transfer transfer{Transfer::Direction::kReceive, ranks_[static_cast<size_t>(replica)],
                            TagOf(unit, buffer), std::as_writable_bytes(std::span<float>(piece_))};
    RETURN_IF_ERROR(transport_.Run(std::span<const Transfer>(&transfer, 1), timeout_));
    consume(begin, piece_);
  }
  return absl::OkStatus();
}

}  // namespace esteira
