// The number of members that have what is sent doubles with every message: latencies grow with the
// logarithm.
#include <bit>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"

namespace esteira {

// A binomial tree: in places relative to the root, member r receives from r without its lowest bit
// and sends to r plus each smaller bit.
absl::Status TreeBroadcast(const Round& round, std::span<std::byte> buffer, int root) {
  const auto n = static_cast<unsigned>(round.size());
  const auto relative = static_cast<unsigned>(round.Neighbour(-root));
  const auto member = [&](unsigned place) { return round.Wrap(root + static_cast<int>(place)); };
  unsigned bit = relative == 0 ? std::bit_ceil(n) : relative & (~relative + 1);
  if (relative != 0) RETURN_IF_ERROR(round.Run({{round.Receive(member(relative - bit), buffer)}}));
  std::vector<Transfer> transfers;
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (relative + bit < n) transfers.push_back(round.Send(member(relative + bit), buffer));
  }
  return round.Run(transfers);
}

// Dissemination: after the message from 2^k back, a member knows that 2^(k+1) members have come.
absl::Status TreeBarrier(const Round& round) {
  for (int distance = 1; distance < round.size(); distance *= 2) {
    RETURN_IF_ERROR(round.Run({{round.Receive(round.Neighbour(-distance), {}),
                                round.Send(round.Neighbour(distance), {})}}));
  }
  return absl::OkStatus();
}

}  // namespace esteira
