#include "worker/communication/host/host_mesh.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

int64_t CostOf(const Message& message) {
  const bool whole = message.kind == Message::Kind::kInline;
  return static_cast<int64_t>(sizeof(message) + (whole ? message.length : 0));
}

bool IsReceive(const Transfer& transfer) {
  return transfer.direction == Transfer::Direction::kReceive;
}

}  // namespace

HostMesh::Batch::Batch(HostMesh& owner, std::span<const Transfer> transfers, absl::Duration allowed,
                       const Transport::Arrived* segments)
    : mesh(owner),
      timeout(allowed),
      deadline(DeadlineAfter(allowed)),
      arrived(segments),
      pending(transfers.size()) {
  operations.reserve(transfers.size());
  for (const Transfer& transfer : transfers) {
    operations.push_back({.batch = this, .transfer = transfer});
    if (IsReceive(transfer)) ++receives;
    bytes += std::ssize(transfer.bytes);
  }
}

bool HostMesh::Batch::CanRead() const {
  return !reads.empty() && (arrived == nullptr || reads.size() == receives);
}

HostMesh::HostMesh(const RankIdentity& self, Report report)
    : self_(self), report_(std::move(report)), peers_(static_cast<size_t>(self.size)) {
  for (int rank = 0; rank < self_.size; ++rank) peers_[static_cast<size_t>(rank)].rank = rank;
  absl::StatusOr<std::unique_ptr<Mailbox>> mailbox = Mailbox::Make(self_);
  if (mailbox.ok()) mailbox_ = *std::move(mailbox);
}

MailboxAddress HostMesh::address() const {
  return mailbox_ == nullptr ? MailboxAddress{} : mailbox_->address();
}

bool HostMesh::Meet(int peer, const MailboxAddress& address) {
  if (mailbox_ == nullptr) return false;
  auto mailbox = PeerMailbox::Open(self_, peer, address);
  if (!mailbox.ok()) return false;
  const absl::StatusOr<Lane*> lane = mailbox_->AddLane(peer);
  if (!lane.ok()) return false;
  Peer& self = peers_[static_cast<size_t>(peer)];
  self.mailbox = *std::move(mailbox);
  self.out = LaneWriter(self.mailbox->lane());
  self.in = LaneReader(*lane);
  return true;
}

int HostMesh::Settle(std::span<const uint8_t> met_by) {
  if (mailbox_ == nullptr) return 0;
  mailbox_->Hide();
  cpu_set_t processors = mailbox_->processors();
  for (Peer& peer : peers_) {
    if (met_by[static_cast<size_t>(peer.rank)] == 0) peer.mailbox = nullptr;
    if (peer.mailbox == nullptr) continue;
    neighbours_.push_back(&peer);
    CPU_OR(&processors, &processors, &peer.mailbox->processors());
  }
  crowded_ = neighbours_.size() + 1 > static_cast<size_t>(CPU_COUNT(&processors));
  return static_cast<int>(neighbours_.size());
}

bool HostMesh::Reaches(int peer) const {
  return peer >= 0 && peer < self_.size && peers_[static_cast<size_t>(peer)].mailbox != nullptr;
}

bool HostMesh::ReadsInSegments(std::span<const Transfer> transfers) const {
  std::optional<size_t> size;
  for (const Transfer& transfer : transfers) {
    const size_t bytes = transfer.bytes.size();
    if (!Reaches(transfer.peer)) return false;
    if (!IsReceive(transfer)) continue;
    if (bytes <= kInlineBytes || bytes != size.value_or(bytes)) return false;
    size = bytes;
  }
  return size.has_value();
}

absl::Status HostMesh::Run(std::span<const Transfer> transfers, absl::Duration timeout,
                           const Transport::Arrived* arrived) {
  Batch batch(*this, transfers, timeout, arrived);
  std::unique_lock lock(mutex_);
  if (!failed_.ok()) return failed_;
  batches_.push_back(&batch);
  Start(batch);
  if (batch.pending > 0) Await(batch, lock);
  ReportNoted(lock);
  // The first failure of the whole mesh is not decided here.
  if (batch.pending > 0) batch.changed.wait(lock, [this] { return !failed_.ok(); });
  std::erase(batches_, &batch);
  return batch.pending == 0 ? absl::OkStatus() : failed_;
}

void HostMesh::Start(Batch& batch) {
  for (Operation& operation : batch.operations) {
    if (Ended()) return;
    absl::Status bad = CheckTransfer(operation.transfer, self_.rank, self_.size);
    if (!bad.ok()) return Note(bad, self_.rank);
    IsReceive(operation.transfer) ? StartReceive(operation) : StartSend(operation);
  }
  RingPeers();
}

void HostMesh::StartSend(Operation& send) {
  Peer& peer = peers_[static_cast<size_t>(send.transfer.peer)];
  if (peer.left) return Note(RankClosed(peer.rank), peer.rank);
  if (peer.unsent.empty() && TrySend(peer, send)) return;
  if (peer.unsent.empty()) peer.out.AwaitSlot(true);
  peer.unsent.push_back(&send);
}

bool HostMesh::TrySend(Peer& peer, Operation& send) {
  const std::span<std::byte> bytes = send.transfer.bytes;
  Message message{.tag = send.transfer.tag, .length = bytes.size(), .bytes = bytes.data()};
  const auto free = std::find(peer.offers.begin(), peer.offers.end(), nullptr);
  const bool offered = bytes.size() > kInlineBytes;
  if (offered) {
    if (free == peer.offers.end()) return false;
    message.kind = Message::Kind::kOffer;
    message.address = reinterpret_cast<uint64_t>(bytes.data());
    message.offer = static_cast<uint32_t>(free - peer.offers.begin());
  }
  const absl::StatusOr<bool> written = peer.out.Write(message);
  if (!written.ok()) NoteDamage(peer.rank, written.status());
  if (!written.value_or(false)) return false;
  peer.has_news = true;
  if (offered) {
    *free = &send;
  } else {
    Complete(send);
  }
  return true;
}

void HostMesh::StartReceive(Operation& receive) {
  Peer& peer = peers_[static_cast<size_t>(receive.transfer.peer)];
  const auto arrival =
      std::find_if(peer.arrivals.begin(), peer.arrivals.end(),
                   [&](const Arrival& other) { return other.message.tag == receive.transfer.tag; });
  if (arrival != peer.arrivals.end()) {
    const Arrival kept = std::move(*arrival);
    peer.arrivals.erase(arrival);
    kept_bytes_ -= CostOf(kept.message);
    return Deliver(peer, kept.message, receive);
  }
  if (peer.left) return Note(RankClosed(peer.rank), peer.rank);
  peer.receives.push_back(&receive);
}

bool HostMesh::Drain() {
  bool moved = false;
  for (Peer* peer : neighbours_) {
    if (Ended()) return false;
    const bool messages = DrainMessages(*peer);
    const bool answers = DrainAnswers(*peer);
    const bool sent = Flush(*peer);
    moved = moved || messages || answers || sent;
  }
  if (moved) RingPeers();
  return moved;
}

// One round of the lane at most, so that a quick sender cannot keep the others waiting.
bool HostMesh::DrainMessages(Peer& peer) {
  size_t count = 0;
  for (; count < kSlots && !Ended(); ++count) {
    Message message;
    const absl::StatusOr<bool> there = peer.in.Peek(&message);
    if (!there.ok()) NoteDamage(peer.rank, there.status());
    if (!there.value_or(false)) break;
    Accept(peer, message);
    peer.in.Consume();
  }
  if (peer.in.Publish()) peer.has_news = true;
  return count > 0;
}

bool HostMesh::DrainAnswers(Peer& peer) {
  size_t count = 0;
  for (; count < kMostOffers && !Ended(); ++count) {
    uint32_t offer = 0;
    const absl::StatusOr<bool> there = peer.in.TakeAnswer(&offer);
    if (!there.ok()) NoteDamage(peer.rank, there.status());
    if (!there.value_or(false)) break;
    AcceptAnswer(peer, offer);
  }
  return count > 0;
}

bool HostMesh::Flush(Peer& peer) {
  bool sent = false;
  while (!peer.unsent.empty() && !Ended() && TrySend(peer, *peer.unsent.front())) {
    peer.unsent.pop_front();
    sent = true;
  }
  if (sent && peer.unsent.empty()) peer.out.AwaitSlot(false);
  return sent;
}

void HostMesh::Accept(Peer& peer, const Message& message) {
  const auto receive =
      std::find_if(peer.receives.begin(), peer.receives.end(),
                   [&](const Operation* other) { return other->transfer.tag == message.tag; });
  if (receive == peer.receives.end()) return Keep(peer, message);
  Operation& met = **receive;
  peer.receives.erase(receive);
  Deliver(peer, message, met);
}

void HostMesh::Keep(Peer& peer, const Message& message) {
  Arrival& arrival = peer.arrivals.emplace_back(Arrival{message, {}});
  if (message.kind == Message::Kind::kInline) {
    arrival.bytes.assign(message.bytes, message.bytes + message.length);
    arrival.message.bytes = arrival.bytes.data();
  }
  kept_bytes_ += CostOf(message);
  if (kept_bytes_ > kMostKeptBytes) Note(TooMuchKept(), self_.rank);
}

void HostMesh::Deliver(Peer& peer, const Message& message, Operation& receive) {
  const std::span<std::byte> bytes = receive.transfer.bytes;
  if (message.length != bytes.size()) {
    return Note(SizesDiffer(message.tag, peer.rank, message.length, self_.rank, bytes.size()),
                self_.rank);
  }
  if (message.kind == Message::Kind::kOffer) {
    receive.batch->reads.push_back({&receive, message.address, message.offer});
    return Wake(*receive.batch);
  }
  if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes, bytes.size());
  Complete(receive);
}

void HostMesh::AcceptAnswer(Peer& peer, uint32_t offer) {
  Operation* const send = std::exchange(peer.offers[offer], nullptr);
  if (send != nullptr) return Complete(*send);
  Note(absl::DataLossError(absl::StrCat("rank ", peer.rank, " took what it was not offered")),
       peer.rank);
}

void HostMesh::Complete(Operation& operation) {
  const auto bytes = static_cast<int64_t>(operation.transfer.bytes.size());
  if (IsReceive(operation.transfer)) {
    counters_.bytes_received += bytes;
  } else {
    counters_.bytes_sent += bytes;
    ++counters_.messages_sent;
  }
  operation.done = true;
  Batch& batch = *operation.batch;
  if (--batch.pending == 0) Wake(batch);
}

void HostMesh::RingPeers() {
  for (Peer* peer : neighbours_) {
    if (std::exchange(peer->has_news, false)) peer->mailbox->doorbell().RingIfAwaited();
  }
}

TransportCounters HostMesh::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace esteira
