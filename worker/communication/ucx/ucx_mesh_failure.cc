// How a mesh moves on, and how it ends: by failure or in order.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/communication/transfer_text.h"
#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {
namespace {

// So that a stream of messages cannot keep deadlines and new work waiting.
constexpr int kMostTurns = 64;
constexpr size_t kMostReasonBytes = 1024;
// UCX gives all buffers back a moment after its endpoints are closed by force.
constexpr absl::Duration kDrainLimit = absl::Seconds(2);

}  // namespace

bool UcxMesh::Progress() {
  int turns = 0;
  while (turns < kMostTurns && worker_->get() != nullptr &&
         ucp_worker_progress(worker_->get()) != 0) {
    ++turns;
  }
  ActOnNotes();
  return turns > 0;
}

void UcxMesh::SetHost(HostMesh& host) {
  host_ = &host;
  departures_ = true;
  if (!failed_.ok()) host.Fail(failed_);
}

void UcxMesh::ActOnNotes() {
  NoteDepartures();
  NoteOverdue(std::chrono::steady_clock::now());
  if (!noted_.cause.ok()) Fail(noted_.cause, noted_.origin);
  for (const Ready& ready : std::exchange(ready_, {})) StartRendezvous(ready);
}

void UcxMesh::Note(const absl::Status& cause, int origin) {
  if (noted_.cause.ok()) noted_ = {cause, origin};
}

void UcxMesh::NoteLoss(int peer, ucs_status_t error) {
  if (PeerOf(peer).left) {
    departures_ = true;
    return;
  }
  Note(absl::UnavailableError(absl::StrCat("rank ", peer, " is lost: ", ucs_status_string(error))),
       peer);
}

void UcxMesh::NoteDepartures() {
  if (!std::exchange(departures_, false)) return;
  for (const Peer& peer : peers_) {
    if (peer.left && host_ != nullptr) host_->Depart(peer.rank);
  }
  for (const std::shared_ptr<Batch>& batch : batches_) {
    for (const Operation& operation : batch->operations()) {
      const int peer = operation.transfer.peer;
      if (!operation.done && PeerOf(peer).left) Note(RankClosed(peer), peer);
    }
  }
}

void UcxMesh::NoteOverdue(Deadline now) {
  for (const std::shared_ptr<Batch>& batch : batches_) {
    if (now < batch->deadline()) continue;
    Note(TimedOut(batch->FirstPending()->transfer, self_.rank, batch->timeout()), self_.rank);
  }
}

Deadline UcxMesh::NextDeadline() const {
  Deadline next = Deadline::max();
  for (const std::shared_ptr<Batch>& batch : batches_) next = std::min(next, batch->deadline());
  return next;
}

void UcxMesh::OnPeerError(void* peer, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto& self = *static_cast<Peer*>(peer);
  self.lost = status;
  self.mesh->NoteLoss(self.rank, status);
}

void UcxMesh::Fail(const absl::Status& cause, int origin) {
  if (!failed_.ok()) return;
  failed_ = cause;
  Note(cause, origin);
  if (host_ != nullptr) host_->Fail(failed_);
  for (Peer& peer : peers_) SendNotice(peer, FrameKind::kAbort, origin, failed_.message());
  CloseEndpoints(UCP_EP_CLOSE_FLAG_FORCE);
  ReleaseKept();
  ProgressUntilClosed(DeadlineAfter(kDrainLimit));
  const bool held = std::any_of(batches_.begin(), batches_.end(),
                                [](const auto& batch) { return batch->HasInFlight(); });
  if (held) worker_->Destroy();  // ends what still reads or writes a buffer
  for (const std::shared_ptr<Batch>& batch : std::exchange(batches_, {})) batch->Finish(failed_);
}

// Only when the endpoints are closed: UCX tells a sender that it can still reach that its bytes
// were taken.
void UcxMesh::ReleaseKept() {
  std::vector<void*> descriptors = matcher_.Clear();
  for (const Ready& ready : std::exchange(ready_, {})) descriptors.push_back(ready.descriptor);
  for (void* descriptor : std::exchange(unwanted_, {})) descriptors.push_back(descriptor);
  for (void* descriptor : descriptors) ucp_am_data_release(worker_->get(), descriptor);
}

// Best effort: a peer that does not get it notices that the connection is gone.
void UcxMesh::SendNotice(Peer& peer, FrameKind kind, int origin, absl::string_view reason) {
  if (peer.endpoint == nullptr || peer.left || peer.lost != UCS_OK) return;
  const absl::string_view text = reason.substr(0, kMostReasonBytes);
  const Tag tag{0, 0, static_cast<uint32_t>(origin)};
  Notice& notice = notices_.emplace_back();
  notice.reason = std::string(text);
  notice.header = MakeFrame(self_, kind, peer.rank, tag, peer.next_sent++, text.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kActiveMessage, &notice.header, sizeof(notice.header),
                      notice.reason.data(), notice.reason.size(), &param);
  if (UCS_PTR_IS_PTR(request)) pending_.push_back(request);
}

void UcxMesh::CloseEndpoints(unsigned flags) {
  for (Peer& peer : peers_) {
    const ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
    if (endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    if (peer.lost != UCS_OK) param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) pending_.push_back(request);
  }
}

void UcxMesh::ProgressUntilClosed(Deadline limit) {
  const auto busy = [this] {
    std::erase_if(pending_, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    return !pending_.empty() || std::any_of(batches_.begin(), batches_.end(),
                                            [](const auto& batch) { return batch->HasInFlight(); });
  };
  while (busy() && std::chrono::steady_clock::now() < limit) {
    if (ucp_worker_progress(worker_->get()) == 0) std::this_thread::yield();
  }
  // UCX frees what is given back early when it is complete.
  for (void* request : std::exchange(pending_, {})) ucp_request_free(request);
}

void UcxMesh::Close(absl::Duration limit) {
  if (!failed_.ok()) return;
  failed_ = absl::FailedPreconditionError("the transport is closed");
  for (Peer& peer : peers_) SendNotice(peer, FrameKind::kGoodbye, self_.rank, "");
  CloseEndpoints(/*flags=*/0);
  ProgressUntilClosed(DeadlineAfter(limit));
  ReleaseKept();
}

}  // namespace esteira
