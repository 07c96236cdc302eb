// Messages from one process to another in memory that both have mapped: a lane, one writer and one
// reader, each under a lock of its own process. Nothing that is read from a lane is trusted: the
// other process may be broken, or die at any instant.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "worker/communication/transport.h"

namespace esteira {

// Up to here the bytes of a message lie in the lane; beyond, the lane says where in the memory of
// the sender.
inline constexpr size_t kInlineBytes = 8 << 10;
inline constexpr size_t kSlots = 16;
// Messages under way whose bytes lie with the sender.
inline constexpr size_t kMostOffers = 64;

struct Message {
  enum class Kind : uint32_t { kInline = 1, kOffer };
  Kind kind = Kind::kInline;
  Tag tag{};
  uint64_t length = 0;
  const std::byte* bytes = nullptr;  // kInline
  uint64_t address = 0;              // kOffer: in the memory of the sender, who leaves it there
  uint32_t offer = 0;                // kOffer: below kMostOffers, named by the answer
};

// Zeros at first. What each side writes lies in cache lines of its own.
struct Lane {
  struct Slot {
    alignas(64) std::atomic<uint64_t> sequence;  // of the message in it, from 1; written last
    Message::Kind kind;
    Tag tag;
    uint64_t length;
    uint64_t address;
    uint32_t offer;
    alignas(64) std::byte bytes[kInlineBytes];
  };
  alignas(64) std::atomic<uint64_t> consumed;     // messages; written by the reader
  alignas(64) std::atomic<uint32_t> awaits_slot;  // the writer has more than slots
  std::atomic<uint32_t> withdrawn;                // the writer's offers hold no longer
  // The bytes of an offer of the reader's side were taken: number << 16 | offer, numbers from 1.
  // Never more than it has under way.
  alignas(64) std::array<std::atomic<uint64_t>, kMostOffers> answers;
  std::array<Slot, kSlots> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class LaneWriter {
 public:
  explicit LaneWriter(Lane* lane) : lane_(lane) {}

  // False: every slot is taken. DataLoss: the reader has consumed what cannot be.
  absl::StatusOr<bool> Write(const Message& message);
  void WriteAnswer(uint32_t offer);
  // Whether the reader should ring when it has freed a slot. After true, Write is to be tried once
  // more before sleeping.
  void AwaitSlot(bool await);
  // To be called before memory that was offered is used for something else.
  void WithdrawOffers() { lane_->withdrawn.store(1, std::memory_order_seq_cst); }

 private:
  Lane* lane_;
  uint64_t written_ = 0;
  uint64_t consumed_ = 0;  // at least
  uint64_t answered_ = 0;
};

class LaneReader {
 public:
  explicit LaneReader(Lane* lane) : lane_(lane) {}

  // False: no message is there. DataLoss: something is that no writer writes. The bytes lie in the
  // lane until Consume.
  absl::StatusOr<bool> Peek(Message* message) const;
  void Consume() { ++consumed_; }
  // Gives the slots of what was consumed back; true: the writer waits for one.
  bool Publish();
  // False: there is none. DataLoss as above.
  absl::StatusOr<bool> TakeAnswer(uint32_t* offer);
  // False: all that has been read of offers so far was still as it was offered.
  bool OffersWithdrawn() const { return lane_->withdrawn.load(std::memory_order_seq_cst) != 0; }

 private:
  Lane* lane_;
  uint64_t consumed_ = 0;
  uint64_t published_ = 0;
  uint64_t answers_ = 0;
};

}  // namespace esteira
