// Everyone exchanges with everyone at once: one latency, many flows.
#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"

namespace esteira {

absl::Status DirectAllGather(const Round& round, std::span<std::byte> buffer) {
  const int n = round.size();
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < n; ++distance) {
    const int from = round.Neighbour(-distance);
    transfers.push_back(round.Receive(from, Piece(buffer, from, n)));
  }
  for (int distance = 1; distance < n; ++distance) {
    transfers.push_back(round.Send(round.Neighbour(distance), Piece(buffer, round.position(), n)));
  }
  return round.Run(transfers);
}

template <typename Element>
absl::Status DirectReduceScatter(const Round& round, std::span<Element> buffer,
                                 std::span<Element> scratch) {
  const int n = round.size();
  const std::span<Element> own = Piece(buffer, round.position(), n);
  // received[k] is this rank's piece as member position + 1 + k has it: in the order of the
  // additions.
  std::vector<std::span<Element>> received;
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < n; ++distance) {
    received.push_back(Piece(scratch, distance - 1, n - 1));
    transfers.push_back(
        round.Receive(round.Neighbour(distance), std::as_writable_bytes(received.back())));
  }
  for (int distance = 1; distance < n; ++distance) {
    const int to = round.Neighbour(-distance);
    transfers.push_back(round.Send(to, std::as_writable_bytes(Piece(buffer, to, n))));
  }
  RETURN_IF_ERROR(round.Run(transfers));

  constexpr size_t kBlock = 4096;  // stays in the first-level cache while all members are added up
  for (size_t begin = 0; begin < own.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, own.size() - begin);
    const std::span<Element> sum = received.front().subspan(begin, count);
    for (size_t k = 1; k < received.size(); ++k) {
      AddTo<Element>(sum, received[k].subspan(begin, count));
    }
    AddTo<Element>(own.subspan(begin, count), sum);
  }
  return absl::OkStatus();
}

template absl::Status DirectReduceScatter<float>(const Round& round, std::span<float> buffer,
                                                 std::span<float> scratch);
template absl::Status DirectReduceScatter<int64_t>(const Round& round, std::span<int64_t> buffer,
                                                   std::span<int64_t> scratch);

absl::Status DirectBroadcast(const Round& round, std::span<std::byte> buffer, int root) {
  std::vector<Transfer> transfers;
  if (round.position() == root) {
    for (int distance = 1; distance < round.size(); ++distance) {
      transfers.push_back(round.Send(round.Neighbour(distance), buffer));
    }
  } else {
    transfers.push_back(round.Receive(root, buffer));
  }
  return round.Run(transfers);
}

}  // namespace esteira
