#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/communication/deadline.h"
#include "worker/communication/host/lane.h"
#include "worker/communication/host/mailbox.h"
#include "worker/communication/rank_identity.h"
#include "worker/communication/transport.h"

namespace esteira {

// One rank's end among the ranks of its machine: all transfers between those that can read each
// other's memory. Has no thread: whoever is inside Run moves what can be moved, also for others,
// and sleeps at the doorbell when nothing comes. Does not notice that a peer is gone: whoever does
// calls Fail or Depart. Thread-safe once Settle has returned.
class HostMesh {
 public:
  // Told of a failure that begins here, by a thread inside Run, which then waits for Fail. `origin`
  // is the rank that was the first to fail.
  using Report = std::function<void(const absl::Status& cause, int origin)>;
  HostMesh(const RankIdentity& self, Report report);
  HostMesh(const HostMesh&) = delete;

  // Getting to know each other: everyone is told the address of everyone, meets whom it can, and
  // is told who has met it.
  MailboxAddress address() const;
  bool Meet(int peer, const MailboxAddress& address);
  // Peers are those who have met each other. By rank: who has met this one. Returns their number.
  int Settle(std::span<const uint8_t> met_by);
  bool Reaches(int peer) const;

  // As Transport::Run, of transfers with peers that it reaches.
  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) {
    return Run(transfers, timeout, nullptr);
  }
  // Whether RunInSegments calls for parts of messages: all messages are read out of the memory of
  // peers, and of one size.
  bool ReadsInSegments(std::span<const Transfer> transfers) const;
  absl::Status RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                             const Transport::Arrived& arrived) {
    return Run(transfers, timeout, &arrived);
  }

  // Ends every Run, now and later, with `cause`; only the first counts. Any thread.
  void Fail(const absl::Status& cause);
  // `peer` has left in order and sends no more: whoever still waits for it fails. Any thread.
  void Depart(int peer);
  TransportCounters counters() const;

 private:
  struct Batch;
  struct Operation {
    Batch* batch = nullptr;
    Transfer transfer;
    bool done = false;
  };
  // An offer that has met its receive.
  struct Read {
    Operation* receive;
    uint64_t address;
    uint32_t offer;
  };
  // One Run, on the stack of its thread.
  struct Batch {
    Batch(HostMesh& mesh, std::span<const Transfer> transfers, absl::Duration timeout,
          const Transport::Arrived* arrived);
    // All reads of a batch in segments go on together.
    bool CanRead() const;

    HostMesh& mesh;
    const absl::Duration timeout;
    const Deadline deadline;
    const Transport::Arrived* const arrived;  // null: whole messages
    std::vector<Operation> operations;
    size_t pending;
    size_t receives = 0;
    int64_t bytes = 0;  // of all transfers
    std::vector<Read> reads;
    bool waits = false;  // for `changed`, while another thread sleeps at the doorbell
    std::condition_variable changed;
  };
  // A message that came before its receive.
  struct Arrival {
    Message message;
    std::vector<std::byte> bytes;
  };
  struct Peer {
    int rank = 0;
    std::unique_ptr<PeerMailbox> mailbox;  // null: it is not reached
    Lane* from = nullptr;
    LaneWriter out{nullptr};
    LaneReader in{nullptr};
    std::deque<Operation*> unsent;  // wait for a place in the lane
    std::array<Operation*, kMostOffers> offers{};
    std::vector<Operation*> receives;
    std::deque<Arrival> arrivals;
    bool left = false;
    bool has_news = false;  // something was written for it since it was last rung
  };

  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout,
                   const Transport::Arrived* arrived);
  // What follows is called with mutex_ held, but for the functions that say so.
  void Start(Batch& batch);
  void StartSend(Operation& send);
  void StartReceive(Operation& receive);
  bool TrySend(Peer& peer, Operation& send);
  // Moves what has come and what can go; true if anything did.
  bool Drain();
  bool DrainMessages(Peer& peer);
  bool DrainAnswers(Peer& peer);
  bool Flush(Peer& peer);
  void Accept(Peer& peer, const Message& message);
  void Keep(Peer& peer, const Message& message);
  void Deliver(Peer& peer, const Message& message, Operation& receive);
  void AcceptAnswer(Peer& peer, uint32_t offer);
  void Complete(Operation& operation);
  void RingPeers();

  // How a thread waits for its batch.
  void Await(Batch& batch, std::unique_lock<std::mutex>& lock);
  // Between two looks at what has come. False: it is time to sleep.
  bool Pause(const Batch& batch, Deadline::duration polled, Deadline now,
             std::unique_lock<std::mutex>& lock);
  void Sleep(Batch& batch, std::unique_lock<std::mutex>& lock);
  void SleepAtDoorbell(Batch& batch, std::unique_lock<std::mutex>& lock);
  void BeginPolling();
  void EndPolling();
  void Wake(Batch& batch);
  bool Ended() const { return !failed_.ok() || !noted_.ok(); }

  // Without mutex_.
  void ReadOffers(Batch& batch, std::span<const Read> reads);
  void ReadSegments(Batch& batch, std::span<const Read> reads);
  // False: it has failed, or will.
  bool ReadPart(Batch& batch, const Read& read, size_t offset, std::span<std::byte> to);
  void Finish(const Read& read);

  // Remembers the first failure until a thread reports it.
  void Note(const absl::Status& cause, int origin);
  void NoteDamage(int peer, const absl::Status& cause);
  void ReportNoted(std::unique_lock<std::mutex>& lock);

  const RankIdentity self_;
  const Report report_;
  std::unique_ptr<Mailbox> mailbox_;  // null: the machine gives none
  std::vector<Peer> peers_;           // by rank
  std::vector<Peer*> neighbours_;     // that are reached
  bool crowded_ = false;              // more ranks than processors of all of them

  mutable std::mutex mutex_;
  std::vector<Batch*> batches_;
  int64_t kept_bytes_ = 0;
  // At any time somebody will see what comes: a thread that polls, or, when there is none, the one
  // that sleeps at the doorbell, which is then rung; or nobody waits.
  int polling_ = 0;
  const Batch* watchman_ = nullptr;   // whose thread sleeps at the doorbell
  Deadline keeps_processor_until_{};  // does not offer it to others
  absl::Status noted_;
  int noted_origin_ = 0;
  bool reported_ = false;
  absl::Status failed_;
  std::atomic<bool> ended_ = false;  // failed_ or noted_, for who reads without the lock
  TransportCounters counters_;
};

}  // namespace esteira
