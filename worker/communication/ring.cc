// Everyone sends to the next member and receives from the previous one: many latencies, one flow a
// link.
#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"

namespace esteira {

absl::Status RingAllGather(const Round& round, std::span<std::byte> buffer) {
  const int n = round.size();
  for (int step = 0; step < n - 1; ++step) {
    const int sent = round.Neighbour(-step);
    const int received = round.Neighbour(-step - 1);
    RETURN_IF_ERROR(round.Run({{round.Receive(round.Neighbour(-1), Piece(buffer, received, n)),
                                round.Send(round.Neighbour(1), Piece(buffer, sent, n))}}));
  }
  return absl::OkStatus();
}

template <typename Element>
absl::Status RingReduceScatter(const Round& round, std::span<Element> buffer,
                               std::span<Element> scratch) {
  const int n = round.size();
  const std::span<Element> partial = scratch.first(buffer.size() / static_cast<size_t>(n));
  for (int step = 0; step < n - 1; ++step) {
    const std::span<Element> sent = Piece(buffer, round.Neighbour(-step - 1), n);
    const std::span<Element> sum = Piece(buffer, round.Neighbour(-step - 2), n);
    RETURN_IF_ERROR(round.Run({{round.Receive(round.Neighbour(-1), std::as_writable_bytes(partial)),
                                round.Send(round.Neighbour(1), std::as_writable_bytes(sent))}}));
    AddTo<Element>(sum, partial);
  }
  return absl::OkStatus();
}

template absl::Status RingReduceScatter<float>(const Round& round, std::span<float> buffer,
                                               std::span<float> scratch);
template absl::Status RingReduceScatter<int64_t>(const Round& round, std::span<int64_t> buffer,
                                                 std::span<int64_t> scratch);

// A chain that starts at the root: while a member passes a segment on, the next one arrives.
absl::Status RingBroadcast(const Round& round, std::span<std::byte> buffer, int root) {
  constexpr size_t kSegmentBytes = 256 << 10;
  const bool first = round.position() == root;
  const bool last = round.Neighbour(1) == root;
  const size_t segments = std::max<size_t>(1, (buffer.size() + kSegmentBytes - 1) / kSegmentBytes);
  const auto segment = [&](size_t index) {
    const size_t begin = index * kSegmentBytes;
    return buffer.subspan(begin, std::min(kSegmentBytes, buffer.size() - begin));
  };
  for (size_t turn = 0; turn <= segments; ++turn) {
    std::vector<Transfer> transfers;
    if (!first && turn < segments) {
      transfers.push_back(round.Receive(round.Neighbour(-1), segment(turn)));
    }
    if (!last && turn > 0) transfers.push_back(round.Send(round.Neighbour(1), segment(turn - 1)));
    RETURN_IF_ERROR(round.Run(transfers));
  }
  return absl::OkStatus();
}

}  // namespace esteira
