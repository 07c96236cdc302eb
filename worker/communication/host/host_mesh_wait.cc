// How a thread waits for its batch: it reads what it was offered, polls for a moment, then sleeps;
// and how the mesh fails.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/communication/host/host_mesh.h"
#include "worker/communication/host/peer_memory.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

// A reply often comes within this time; to be woken takes about as long.
constexpr auto kPolling = std::chrono::microseconds(50);
// Of that, before the processor is offered to others: a rank that runs on it cannot send.
constexpr auto kSpinning = std::chrono::microseconds(2);
// Somebody computes on this processor, and would be given milliseconds each time. To be woken is
// quicker, so it is not offered again for a while. What the transfers themselves may take does not
// count: another rank is at work on them.
constexpr auto kLongAbsence = std::chrono::milliseconds(1);
constexpr auto kAbsenceOfEachByte = std::chrono::nanoseconds(1);
constexpr auto kKeeping = std::chrono::milliseconds(100);
constexpr auto kPollingAlone = std::chrono::microseconds(20);

// Read at once of a message; deadline and failures wait meanwhile.
constexpr size_t kBytesAtOnce = 1 << 20;

// Segments of all messages together stay in a second-level cache; none is too small for a call of
// the kernel. A multiple of what any element takes.
size_t SegmentBytes(size_t messages) {
  constexpr size_t kCacheBytes = 1 << 20;
  constexpr size_t kLeast = 64 << 10, kMost = 256 << 10;
  return std::clamp(kCacheBytes / messages, kLeast, kMost) & ~size_t{63};
}

}  // namespace

void HostMesh::Await(Batch& batch, std::unique_lock<std::mutex>& lock) {
  BeginPolling();
  auto polling_since = std::chrono::steady_clock::now();
  while (!Ended()) {
    const bool moved = Drain();
    if (batch.pending == 0 || Ended()) break;
    if (batch.CanRead()) {
      const std::vector<Read> reads = std::exchange(batch.reads, {});
      EndPolling();
      lock.unlock();
      batch.arrived == nullptr ? ReadOffers(batch, reads) : ReadSegments(batch, reads);
      lock.lock();
      BeginPolling();
      polling_since = std::chrono::steady_clock::now();
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (moved) {
      polling_since = now;
    } else if (now >= batch.deadline) {
      const auto late = std::find_if(batch.operations.begin(), batch.operations.end(),
                                     [](const Operation& operation) { return !operation.done; });
      Note(TimedOut(late->transfer, self_.rank, batch.timeout), self_.rank);
    } else if (!Pause(batch, now - polling_since, now, lock)) {
      Sleep(batch, lock);
      polling_since = std::chrono::steady_clock::now();
    }
  }
  EndPolling();
}

bool HostMesh::Pause(const Batch& batch, Deadline::duration polled, Deadline now,
                     std::unique_lock<std::mutex>& lock) {
  const bool offers = now >= keeps_processor_until_;
  const Deadline::duration alone = crowded_ ? Deadline::duration::zero() : kPollingAlone;
  if (polled >= (offers ? kPolling : alone)) return false;
  lock.unlock();  // to let others in
  const bool offer = offers && (crowded_ || polled >= kSpinning);
  if (offer) sched_yield();
  lock.lock();
  const auto long_absence = kLongAbsence + batch.bytes * kAbsenceOfEachByte;
  if (offer && std::chrono::steady_clock::now() - now > long_absence) {
    keeps_processor_until_ = now + kKeeping;
  }
  return true;
}

void HostMesh::Sleep(Batch& batch, std::unique_lock<std::mutex>& lock) {
  if (watchman_ == nullptr) return SleepAtDoorbell(batch, lock);
  EndPolling();
  batch.waits = true;
  batch.changed.wait_until(lock, batch.deadline, [&] {
    return watchman_ == nullptr || batch.pending == 0 || batch.CanRead() || Ended();
  });
  batch.waits = false;
  BeginPolling();
}

void HostMesh::SleepAtDoorbell(Batch& batch, std::unique_lock<std::mutex>& lock) {
  watchman_ = &batch;
  Doorbell& doorbell = mailbox_->doorbell();
  const uint32_t rings = doorbell.Await();
  if (--polling_ > 0) doorbell.StopAwaiting();
  if (!Drain() && !Ended()) {
    lock.unlock();
    doorbell.Sleep(rings, batch.deadline);
    lock.lock();
  }
  watchman_ = nullptr;
  doorbell.StopAwaiting();
  ++polling_;
}

void HostMesh::BeginPolling() {
  if (polling_++ == 0 && watchman_ != nullptr) mailbox_->doorbell().StopAwaiting();
}

void HostMesh::EndPolling() {
  if (--polling_ > 0) return;
  if (watchman_ != nullptr) {
    mailbox_->doorbell().Await();
    Drain();
    return;
  }
  const auto waits = std::find_if(batches_.begin(), batches_.end(),
                                  [](const Batch* batch) { return batch->waits; });
  if (waits != batches_.end()) (*waits)->changed.notify_one();
}

void HostMesh::Wake(Batch& batch) {
  if (&batch == watchman_) {
    mailbox_->doorbell().Ring();
  } else {
    batch.changed.notify_one();
  }
}

void HostMesh::ReadOffers(Batch& batch, std::span<const Read> reads) {
  for (const Read& read : reads) {
    const std::span<std::byte> bytes = read.receive->transfer.bytes;
    for (size_t done = 0; done < bytes.size(); done += kBytesAtOnce) {
      const size_t count = std::min(bytes.size() - done, kBytesAtOnce);
      if (!ReadPart(batch, read, done, bytes.subspan(done, count))) return;
    }
    std::lock_guard lock(mutex_);
    Finish(read);
    RingPeers();
  }
}

void HostMesh::ReadSegments(Batch& batch, std::span<const Read> reads) {
  const size_t bytes = reads.front().receive->transfer.bytes.size();
  const size_t most = SegmentBytes(reads.size());
  for (size_t done = 0; done < bytes; done += most) {
    const size_t count = std::min(bytes - done, most);
    for (const Read& read : reads) {
      if (!ReadPart(batch, read, done, read.receive->transfer.bytes.first(count))) return;
    }
    (*batch.arrived)(done, count);
  }
  std::lock_guard lock(mutex_);
  for (const Read& read : reads) Finish(read);
  RingPeers();
}

bool HostMesh::ReadPart(Batch& batch, const Read& read, size_t offset, std::span<std::byte> to) {
  if (ended_ || std::chrono::steady_clock::now() >= batch.deadline) return false;
  const int rank = read.receive->transfer.peer;
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  const absl::Status status = ReadMemory(peer.mailbox->process(), read.address + offset, to);
  // Of a sender that has failed, the verdict will come.
  if (status.ok()) return !peer.in.OffersWithdrawn();
  std::lock_guard lock(mutex_);
  Note(absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", status.message())), rank);
  return false;
}

void HostMesh::Finish(const Read& read) {
  if (Ended()) return;
  Peer& peer = peers_[static_cast<size_t>(read.receive->transfer.peer)];
  peer.out.WriteAnswer(read.offer);
  peer.has_news = true;
  Complete(*read.receive);
}

void HostMesh::Note(const absl::Status& cause, int origin) {
  if (Ended()) return;
  noted_ = cause;
  noted_origin_ = origin;
  ended_ = true;
}

void HostMesh::NoteDamage(int peer, const absl::Status& cause) {
  Note(absl::Status(cause.code(), absl::StrCat("the lane from or to rank ", peer,
                                               " is damaged: ", cause.message())),
       peer);
}

void HostMesh::ReportNoted(std::unique_lock<std::mutex>& lock) {
  if (noted_.ok() || !failed_.ok() || std::exchange(reported_, true)) return;
  lock.unlock();
  report_(noted_, noted_origin_);
  lock.lock();
}

void HostMesh::Fail(const absl::Status& cause) {
  std::lock_guard lock(mutex_);
  if (!failed_.ok()) return;
  failed_ = cause;
  ended_ = true;
  for (Peer& peer : peers_) {
    peer.receives.clear();
    peer.unsent.clear();
    peer.arrivals.clear();
    peer.offers.fill(nullptr);
    if (peer.mailbox != nullptr) peer.out.WithdrawOffers();
  }
  for (Batch* batch : batches_) batch->changed.notify_one();
  if (mailbox_ != nullptr) mailbox_->doorbell().Ring();
}

void HostMesh::Depart(int peer) {
  std::unique_lock lock(mutex_);
  Peer& gone = peers_[static_cast<size_t>(peer)];
  if (gone.mailbox == nullptr) return;
  while (DrainMessages(gone)) {
  }
  DrainAnswers(gone);
  gone.left = true;
  for (const Batch* batch : batches_) {
    for (const Operation& operation : batch->operations) {
      if (operation.transfer.peer == peer && !operation.done) Note(RankClosed(peer), peer);
    }
  }
  ReportNoted(lock);
}

}  // namespace esteira
