// Words for errors that concern one transfer, the same in every transport.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/communication/transport.h"

namespace esteira {

// "send of 12 bytes to rank 3, tag 4096/0/7".
std::string TransferText(const Transfer& transfer);

// InvalidArgument unless the peer is another rank of a mesh of `size`.
absl::Status CheckTransfer(const Transfer& transfer, int rank, int size);

absl::Status TimedOut(const Transfer& transfer, int rank, absl::Duration timeout);
absl::Status SizesDiffer(const Tag& tag, int source, size_t sent, int destination, size_t posted);
// Unavailable: what other ranks see when `rank` has aborted with `cause`.
absl::Status RankAborted(int rank, absl::string_view cause);
absl::Status RankClosed(int rank);

// Of messages that have come before their receives.
inline constexpr int64_t kMostKeptBytes = int64_t{256} << 20;
absl::Status TooMuchKept();

}  // namespace esteira
