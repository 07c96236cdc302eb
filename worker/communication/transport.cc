#include "worker/communication/transport.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace esteira {

absl::Status Transport::RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                                      const Arrived& arrived) {
  RETURN_IF_ERROR(Run(transfers, timeout));
  ArrivedWhole(transfers, arrived);
  return absl::OkStatus();
}

void Transport::ArrivedWhole(std::span<const Transfer> transfers, const Arrived& arrived) {
  const auto received = std::find_if(
      transfers.begin(), transfers.end(),
      [](const Transfer& transfer) { return transfer.direction == Transfer::Direction::kReceive; });
  if (received != transfers.end()) arrived(0, received->bytes.size());
}

}  // namespace esteira
