#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/communication/host/doorbell.h"
#include "worker/communication/host/lane.h"
#include "worker/communication/host/peer_memory.h"
#include "worker/communication/rank_identity.h"

namespace esteira {

// Part of a file in memory, mapped to be shared.
class SharedMapping {
 public:
  static absl::StatusOr<SharedMapping> Map(int descriptor, int64_t offset, size_t bytes);
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  template <typename T>
  T& As() const {
    return *static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// How a peer on the same machine finds a mailbox. Zeros: there is none.
struct MailboxAddress {
  MemoryProof proof;
  int64_t descriptor = 0;  // of the process
};
static_assert(sizeof(MailboxAddress) == 32);

// The head of a mailbox's file. A lane from each rank follows, of which only those in use have
// memory.
struct MailboxHead {
  uint64_t magic;
  uint64_t lane_bytes;
  uint64_t word;  // of the process, as in its MemoryProof
  RankIdentity owner;
  cpu_set_t processors;  // that the owner may use
  alignas(64) Doorbell doorbell;
};

// This rank's: lanes from its peers and the doorbell that it sleeps at, in a file that has no name
// and is gone with the last process that has it open.
class Mailbox {
 public:
  static absl::StatusOr<std::unique_ptr<Mailbox>> Make(const RankIdentity& self);
  Mailbox(const Mailbox&) = delete;
  ~Mailbox();

  MailboxAddress address() const;  // until Hide
  // Memory for the lane from `peer`, once.
  absl::StatusOr<Lane*> AddLane(int peer);
  // Nobody can find it any more.
  void Hide();
  Doorbell& doorbell() const { return head_.As<MailboxHead>().doorbell; }
  const cpu_set_t& processors() const { return head_.As<MailboxHead>().processors; }

 private:
  Mailbox() = default;

  int descriptor_ = -1;
  SharedMapping head_;
  std::map<int, SharedMapping> lanes_;
};

// The part of a peer's mailbox that is for this rank.
class PeerMailbox {
 public:
  // Fails when the peer cannot be reached this way, or is of another mesh.
  static absl::StatusOr<std::unique_ptr<PeerMailbox>> Open(const RankIdentity& self, int peer,
                                                           const MailboxAddress& address);

  Doorbell& doorbell() const { return head_.As<MailboxHead>().doorbell; }
  const cpu_set_t& processors() const { return head_.As<MailboxHead>().processors; }
  Lane* lane() const { return &lane_.As<Lane>(); }
  int64_t process() const { return process_; }

 private:
  PeerMailbox() = default;

  int64_t process_ = 0;
  SharedMapping head_;
  SharedMapping lane_;
};

}  // namespace esteira
