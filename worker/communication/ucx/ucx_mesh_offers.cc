// Large messages between ranks of one machine: the sender says where the data lie, the receiver
// reads them out of the sender's memory and says so.
#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/communication/ucx/peer_memory.h"
#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {
namespace {

// Read at once; other work of the thread waits meanwhile.
constexpr size_t kSegmentBytes = 1 << 20;

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
  reads_.push_back({&receive, header, offer.address, 0});
}

bool UcxMesh::ReadNext() {
  if (reads_.empty()) return false;
  Read& read = reads_.front();
  const std::span<std::byte> left = read.receive->transfer.bytes.subspan(read.done);
  const std::span<std::byte> segment = left.first(std::min(left.size(), kSegmentBytes));
  const Peer& peer = PeerOf(read.header.source);
  const absl::Status status = ReadMemory(peer.neighbour.process, read.address + read.done, segment);
  if (!status.ok()) {
    Note(absl::UnavailableError(absl::StrCat("rank ", peer.rank, " is lost: ", status.message())),
         peer.rank);
    reads_.pop_front();
    return true;
  }
  read.done += segment.size();
  if (segment.size() < left.size()) return true;
  const Read done = read;
  reads_.pop_front();
  SendTaken(done.header, /*fits=*/true);
  Complete(*done.receive);
  return true;
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
