#include "worker/communication/ucx/ucx_mesh.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

ucp_request_param_t BufferParam(Operation& operation) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.datatype = ucp_dt_make_contig(1);
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = &operation;
  return param;
}

// What the sender of a rendezvous is told; UCX allows no such answer to a message that has come
// whole.
constexpr ucs_status_t kRefused = UCS_ERR_REJECTED;
constexpr ucs_status_t kOtherSize = UCS_ERR_MESSAGE_TRUNCATED;

void CopyBytes(const void* from, std::span<std::byte> to) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}

}  // namespace

UcxMesh::UcxMesh(std::unique_ptr<UcpWorker> worker, const RankIdentity& self)
    : worker_(std::move(worker)), self_(self), peers_(static_cast<size_t>(self.size)) {
  for (int rank = 0; rank < self_.size; ++rank) {
    PeerOf(rank).mesh = this;
    PeerOf(rank).rank = rank;
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessage;
  handler.cb = OnMessage;
  handler.arg = this;
  const ucs_status_t error = ucp_worker_set_am_recv_handler(worker_->get(), &handler);
  if (error != UCS_OK) Note(UcsStatus(error, "setting UCX's message handler"), self_.rank);
}

// The worker goes first: UCX may call back while it ends what is left.
UcxMesh::~UcxMesh() { worker_.reset(); }

void UcxMesh::Connect(const std::vector<std::string>& addresses) {
  if (!failed_.ok()) return;
  for (Peer& peer : peers_) {
    if (peer.rank == self_.rank) continue;
    const std::string& address = addresses[static_cast<size_t>(peer.rank)];
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {OnPeerError, &peer};
    const ucs_status_t error = ucp_ep_create(worker_->get(), &params, &peer.endpoint);
    if (error != UCS_OK) {
      peer.endpoint = nullptr;
      Note(UcsStatus(error, absl::StrCat("connecting to rank ", peer.rank)), peer.rank);
      return;
    }
  }
}

void UcxMesh::Start(const std::shared_ptr<Batch>& batch) {
  if (!failed_.ok()) return batch->Finish(failed_);
  if (batch->FirstPending() == nullptr) return batch->Finish(absl::OkStatus());
  batches_.push_back(batch);
  for (Operation& operation : batch->operations()) {
    if (absl::Status bad = CheckTransfer(operation.transfer, self_.rank, self_.size); !bad.ok()) {
      Note(bad, self_.rank);
    }
    if (!noted_.cause.ok()) return;
    operation.mesh = this;
    if (operation.transfer.direction == Transfer::Direction::kSend) {
      StartSend(operation);
    } else {
      StartReceive(operation);
    }
  }
}

void UcxMesh::StartSend(Operation& send) {
  Peer& peer = PeerOf(send.transfer.peer);
  if (peer.left) return Note(RankClosed(peer.rank), peer.rank);
  const std::span<std::byte> bytes = send.transfer.bytes;
  send.header =
      MakeFrame(self_, send.kind, peer.rank, send.transfer.tag, peer.next_sent++, bytes.size());
  ucp_request_param_t param = BufferParam(send);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = bytes.size() > kEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = OnSent;
  send.in_flight = true;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kActiveMessage, &send.header, sizeof(send.header),
                      bytes.data(), bytes.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) Landed(send, UCS_PTR_STATUS(request));
}

void UcxMesh::StartReceive(Operation& receive) {
  std::optional<Arrival> arrival = matcher_.TakeArrival(receive);
  if (!arrival.has_value()) {
    const Peer& peer = PeerOf(receive.transfer.peer);
    if (peer.left) return Note(RankClosed(peer.rank), peer.rank);
    return matcher_.Post(receive);
  }
  if (arrival->rendezvous == nullptr) {
    return Deliver(arrival->header, arrival->bytes.data(), receive);
  }
  if (FitsOrNotes(arrival->header, receive)) {
    return StartRendezvous({&receive, arrival->rendezvous});
  }
  unwanted_.push_back(arrival->rendezvous);
}

// A message that has come whole, to its receive.
void UcxMesh::Deliver(const FrameHeader& header, const void* data, Operation& receive) {
  if (!FitsOrNotes(header, receive)) return;
  CopyBytes(data, receive.transfer.bytes);
  Complete(receive);
}

void UcxMesh::StartRendezvous(const Ready& ready) {
  ucp_request_param_t param = BufferParam(*ready.receive);
  param.cb.recv_am = OnReceived;
  const std::span<std::byte> bytes = ready.receive->transfer.bytes;
  ready.receive->in_flight = true;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), ready.descriptor, bytes.data(), bytes.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) Landed(*ready.receive, UCS_PTR_STATUS(request));
}

ucs_status_t UcxMesh::OnMessage(void* mesh, const void* header, size_t header_bytes, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxMesh*>(mesh);
  const std::span bytes(static_cast<const std::byte*>(header), header_bytes);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const absl::StatusOr<FrameHeader> frame = ReadFrame(self.self_, bytes, length);
  if (frame.ok()) {
    return self.Accept(*frame, rendezvous ? nullptr : data, rendezvous ? data : nullptr);
  }
  ++self.messages_dropped_;
  return rendezvous ? kRefused : UCS_OK;
}

ucs_status_t UcxMesh::Accept(const FrameHeader& header, const void* data, void* rendezvous) {
  const ucs_status_t refused = rendezvous != nullptr ? kRefused : UCS_OK;
  if (!failed_.ok()) return refused;
  Peer& peer = PeerOf(header.source);
  if (header.sequence != peer.next_received++) {
    Note(absl::DataLossError(absl::StrCat("message ", header.sequence, " of rank ", peer.rank,
                                          " came where message ", peer.next_received - 1,
                                          " was due")),
         self_.rank);
    return refused;
  }
  switch (header.kind) {
    case FrameKind::kHello:
    case FrameKind::kData: return AcceptData(header, data, rendezvous);
    case FrameKind::kGoodbye:
      peer.left = true;
      departures_ = true;
      break;
    case FrameKind::kAbort: {
      const absl::string_view reason(static_cast<const char*>(data),
                                     data == nullptr ? 0 : header.length);
      const int origin = static_cast<int>(header.tag.index);
      Note(origin == peer.rank ? RankAborted(origin, reason) : absl::UnavailableError(reason),
           origin);
      break;
    }
  }
  return UCS_OK;
}

ucs_status_t UcxMesh::AcceptData(const FrameHeader& header, const void* data, void* rendezvous) {
  Operation* const receive = matcher_.TakeReceive(header);
  if (receive == nullptr) {
    Arrival arrival{header, {}, rendezvous};
    if (rendezvous == nullptr) {
      const auto* const bytes = static_cast<const std::byte*>(data);
      arrival.bytes.assign(bytes, bytes + header.length);
    }
    matcher_.Keep(std::move(arrival));
    if (matcher_.kept_bytes() > kMostKeptBytes) {
      Note(TooMuchKept(), self_.rank);
    }
    return rendezvous != nullptr ? UCS_INPROGRESS : UCS_OK;
  }
  if (rendezvous == nullptr) {
    Deliver(header, data, *receive);
    return UCS_OK;
  }
  if (!FitsOrNotes(header, *receive)) return kOtherSize;
  ready_.push_back({receive, rendezvous});
  return UCS_INPROGRESS;
}

bool UcxMesh::FitsOrNotes(const FrameHeader& header, const Operation& receive) {
  const size_t posted = receive.transfer.bytes.size();
  if (header.length == posted) return true;
  Note(SizesDiffer(header.tag, header.source, header.length, self_.rank, posted), self_.rank);
  return false;
}

void UcxMesh::OnSent(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto& send = *static_cast<Operation*>(operation);
  send.mesh->Landed(send, status);
}

void UcxMesh::OnReceived(void* request, ucs_status_t status, size_t /*length*/, void* operation) {
  ucp_request_free(request);
  auto& receive = *static_cast<Operation*>(operation);
  receive.mesh->Landed(receive, status);
}

void UcxMesh::Landed(Operation& operation, ucs_status_t status) {
  operation.in_flight = false;
  if (!failed_.ok()) return;  // whatever UCX says of it: the batch has failed
  if (status == UCS_OK) return Complete(operation);
  if (status != kOtherSize) return NoteLoss(operation.transfer.peer, status);
  Note(absl::InvalidArgumentError(
           absl::StrCat(TransferText(operation.transfer), ": the receiver expects another size")),
       operation.transfer.peer);
}

void UcxMesh::Complete(Operation& operation) {
  const auto bytes = static_cast<int64_t>(operation.transfer.bytes.size());
  const bool receive = operation.transfer.direction == Transfer::Direction::kReceive;
  if (operation.kind == FrameKind::kData && receive) {
    bytes_received_ += bytes;
  } else if (operation.kind == FrameKind::kData) {
    ++messages_sent_;
    bytes_sent_ += bytes;
  }
  Batch* const batch = operation.batch;
  if (!batch->MarkDone(operation)) return;
  batch->Finish(absl::OkStatus());
  batches_.remove_if([batch](const std::shared_ptr<Batch>& other) { return other.get() == batch; });
}

TransportCounters UcxMesh::counters() const {
  return {.bytes_sent = bytes_sent_,
          .bytes_received = bytes_received_,
          .messages_sent = messages_sent_,
          .messages_dropped = messages_dropped_};
}

}  // namespace esteira
