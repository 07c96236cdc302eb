#include "worker/communication/transfer_text.h"

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

std::string TagText(const Tag& tag) {
  return absl::StrCat(tag.kind, "/", tag.group, "/", tag.index);
}

}  // namespace

std::string TransferText(const Transfer& transfer) {
  const bool send = transfer.direction == Transfer::Direction::kSend;
  return absl::StrCat(send ? "send of " : "receive of ", transfer.bytes.size(),
                      send ? " bytes to rank " : " bytes from rank ", transfer.peer, ", tag ",
                      TagText(transfer.tag));
}

absl::Status CheckTransfer(const Transfer& transfer, int rank, int size) {
  if (transfer.peer >= 0 && transfer.peer < size && transfer.peer != rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size, ": ",
                                                 TransferText(transfer),
                                                 ": the peer is not another rank of the mesh"));
}

absl::Status TimedOut(const Transfer& transfer, int rank, absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat("rank ", rank, ": ", TransferText(transfer),
                                                  " was not complete after ",
                                                  absl::FormatDuration(timeout)));
}

absl::Status SizesDiffer(const Tag& tag, int source, size_t sent, int destination, size_t posted) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", source, " sent ", sent, " bytes to rank ",
                                                 destination, ", which expects ", posted,
                                                 " bytes, tag ", TagText(tag)));
}

absl::Status RankAborted(int rank, absl::string_view cause) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " aborted: ", cause));
}

absl::Status RankClosed(int rank) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " has closed its transport"));
}

absl::Status TooMuchKept() {
  return absl::ResourceExhaustedError(
      absl::StrCat("more than ", kMostKeptBytes, " bytes of messages wait for their receives"));
}

}  // namespace esteira
