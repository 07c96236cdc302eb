// Large messages between ranks of one machine: the sender says where the data lie, the receiver
// reads them out of the sender's memory and says so.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/communication/ucx/peer_memory.h"
#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {
namespace {

// Read at once; other work of the thread waits meanwhile.
constexpr size_t kBytesAtOnce = 1 << 20;

// Segments of all messages together stay in a second-level cache; none is too small for a call of
// the kernel. A multiple of what any element takes.
size_t SegmentBytes(size_t messages) {
  constexpr size_t kCacheBytes = 1 << 20;
  constexpr size_t kLeast = 64 << 10, kMost = 256 << 10;
  return std::clamp(kCacheBytes / messages, kLeast, kMost) & ~size_t{63};
}

// The body of a message of ours. False: it is none.
template <typename Body>
bool ReadBody(const FrameHeader& header, const void* data, Body* body) {
  if (data == nullptr || header.length != sizeof(Body)) return false;
  std::memcpy(body, data, sizeof(Body));
  return true;
}

}  // namespace

void UcxMesh::SetNeighbours(const std::vector<Neighbour>& by_rank) {
  for (Peer& peer : peers_) peer.neighbour = by_rank[static_cast<size_t>(peer.rank)];
}

void UcxMesh::MakeOffer(Operation& send) {
  const std::span<std::byte> bytes = send.transfer.bytes;
  send.offer = {reinterpret_cast<uint64_t>(bytes.data()), bytes.size()};
  send.offered = true;
  const int peer = send.transfer.peer;
  offered_[{peer, PeerOf(peer).next_sent}] = &send;
}

void UcxMesh::StartRead(const FrameHeader& header, const void* data, Operation& receive) {
  Offer offer;
  if (!ReadBody(header, data, &offer)) {
    return Note(absl::DataLossError(absl::StrCat("rank ", header.source, " sent a broken offer")),
                header.source);
  }
  if (!FitsOrNotes(header, offer.length, receive)) return misfits_.push_back(header);
  const Read read{&receive, header, offer.address};
  if (!receive.batch->in_segments()) return readings_.push_back({{read}});
  Reading& gathered = gathered_[receive.batch];
  gathered.reads.push_back(read);
  if (gathered.reads.size() < receive.batch->receives()) return;
  readings_.push_back(std::move(gathered));
  gathered_.erase(receive.batch);
}

// Every message is of one size, and will be offered.
bool UcxMesh::CanReadInSegments(const Batch& batch) {
  std::optional<size_t> size;
  for (const Operation& operation : batch.operations()) {
    const Transfer& transfer = operation.transfer;
    if (transfer.direction != Transfer::Direction::kReceive) continue;
    if (transfer.peer < 0 || transfer.peer >= self_.size) return false;  // refused later
    if (transfer.bytes.size() <= kEagerBytes || PeerOf(transfer.peer).neighbour.process == 0 ||
        transfer.bytes.size() != size.value_or(transfer.bytes.size())) {
      return false;
    }
    size = transfer.bytes.size();
  }
  return size.has_value();
}

bool UcxMesh::ReadNext() {
  if (readings_.empty()) return false;
  Reading& reading = readings_.front();
  Batch& batch = *reading.reads.front().receive->batch;
  const absl::StatusOr<size_t> count = ReadSegment(reading);
  if (!count.ok()) {
    readings_.pop_front();
    return true;
  }
  if (batch.in_segments()) (*batch.arrived())(reading.done, *count);
  reading.done += *count;
  if (reading.done < reading.reads.front().receive->transfer.bytes.size()) return true;
  const std::vector<Read> reads = std::move(reading.reads);
  readings_.pop_front();
  for (const Read& read : reads) {
    SendTaken(read.header, /*fits=*/true);
    Complete(*read.receive);
  }
  return true;
}

absl::StatusOr<size_t> UcxMesh::ReadSegment(Reading& reading) {
  const bool in_segments = reading.reads.front().receive->batch->in_segments();
  const size_t most = in_segments ? SegmentBytes(reading.reads.size()) : kBytesAtOnce;
  size_t count = 0;
  for (const Read& read : reading.reads) {
    const std::span<std::byte> bytes = read.receive->transfer.bytes;
    count = std::min(bytes.size() - reading.done, most);
    const int source = read.header.source;
    const absl::Status status =
        ReadMemory(PeerOf(source).neighbour.process, read.address + reading.done,
                   bytes.subspan(in_segments ? 0 : reading.done, count));
    if (status.ok()) continue;
    Note(absl::UnavailableError(absl::StrCat("rank ", source, " is lost: ", status.message())),
         source);
    return status;
  }
  return count;
}

void UcxMesh::AcceptTaken(const FrameHeader& header, const void* data) {
  Taken taken;
  const bool whole = ReadBody(header, data, &taken);
  const auto it = whole ? offered_.find({header.source, taken.sequence}) : offered_.end();
  if (it == offered_.end()) {
    return Note(
        absl::DataLossError(absl::StrCat("rank ", header.source, " took what it was not offered")),
        header.source);
  }
  Operation& send = *it->second;
  offered_.erase(it);
  send.taken = true;
  if (taken.fits == 0) return NoteOtherSize(send);
  if (!send.in_flight) Complete(send);
}

void UcxMesh::SendTaken(const FrameHeader& offer, bool fits) {
  Peer& peer = PeerOf(offer.source);
  if (peer.endpoint == nullptr || peer.left || peer.lost != UCS_OK) return;
  auto answer = std::make_unique<Answer>();
  answer->body = {offer.sequence, fits ? uint64_t{1} : uint64_t{0}};
  answer->header = MakeFrame(self_, FrameKind::kTaken, peer.rank, offer.tag, peer.next_sent++,
                             sizeof(answer->body));
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = answer.get();
  param.cb.send = OnAnswered;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kActiveMessage, &answer->header, sizeof(answer->header),
                      &answer->body, sizeof(answer->body), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(answer.release());  // OnAnswered owns it
  } else if (UCS_PTR_STATUS(request) != UCS_OK) {
    NoteLoss(peer.rank, UCS_PTR_STATUS(request));
  }
}

// Whether it went wrong, the peer's error handler says.
void UcxMesh::OnAnswered(void* request, ucs_status_t /*status*/, void* answer) {
  ucp_request_free(request);
  delete static_cast<Answer*>(answer);
}

}  // namespace esteira
