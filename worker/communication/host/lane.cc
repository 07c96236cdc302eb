#include "worker/communication/host/lane.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

// What stands where `number` is due before it has come: the number of the round before, or none.
uint64_t Predecessor(uint64_t number, uint64_t places) {
  return number > places ? number - places : 0;
}

bool IsWellFormed(const Message& message) {
  switch (message.kind) {
    case Message::Kind::kInline: return message.length <= kInlineBytes;
    case Message::Kind::kOffer: return message.length > kInlineBytes && message.offer < kMostOffers;
  }
  return false;
}

}  // namespace

absl::StatusOr<bool> LaneWriter::Write(const Message& message) {
  if (written_ - consumed_ == kSlots) {
    consumed_ = lane_->consumed.load(std::memory_order_seq_cst);
    if (written_ - consumed_ > kSlots) {
      return absl::DataLossError(
          absl::StrCat("of ", written_, " messages, ", consumed_, " are said to be read"));
    }
    if (written_ - consumed_ == kSlots) return false;
  }
  Lane::Slot& slot = lane_->slots[written_ % kSlots];
  slot.kind = message.kind;
  slot.tag = message.tag;
  slot.length = message.length;
  slot.address = message.address;
  slot.offer = message.offer;
  if (message.kind == Message::Kind::kInline && message.length > 0) {
    std::memcpy(slot.bytes, message.bytes, message.length);
  }
  slot.sequence.store(++written_, std::memory_order_seq_cst);
  return true;
}

void LaneWriter::WriteAnswer(uint32_t offer) {
  std::atomic<uint64_t>& place = lane_->answers[answered_ % kMostOffers];
  place.store(++answered_ << 16 | offer, std::memory_order_seq_cst);
}

void LaneWriter::AwaitSlot(bool await) {
  lane_->awaits_slot.store(await ? 1 : 0, std::memory_order_seq_cst);
}

absl::StatusOr<bool> LaneReader::Peek(Message* message) const {
  const uint64_t due = consumed_ + 1;
  const Lane::Slot& slot = lane_->slots[consumed_ % kSlots];
  const uint64_t sequence = slot.sequence.load(std::memory_order_seq_cst);
  if (sequence == Predecessor(due, kSlots)) return false;
  if (sequence != due) {
    return absl::DataLossError(
        absl::StrCat("message ", sequence, " came where message ", due, " was due"));
  }
  *message = {.kind = slot.kind,
              .tag = slot.tag,
              .length = slot.length,
              .bytes = slot.bytes,
              .address = slot.address,
              .offer = slot.offer};
  if (IsWellFormed(*message)) return true;
  return absl::DataLossError(absl::StrCat("message ", due, " of kind ",
                                          static_cast<uint32_t>(message->kind), " and ",
                                          message->length, " bytes cannot be"));
}

bool LaneReader::Publish() {
  if (consumed_ == published_) return false;
  published_ = consumed_;
  lane_->consumed.store(consumed_, std::memory_order_seq_cst);
  return lane_->awaits_slot.load(std::memory_order_seq_cst) != 0;
}

absl::StatusOr<bool> LaneReader::TakeAnswer(uint32_t* offer) {
  const uint64_t due = answers_ + 1;
  const uint64_t word = lane_->answers[answers_ % kMostOffers].load(std::memory_order_seq_cst);
  if (word >> 16 == Predecessor(due, kMostOffers)) return false;
  *offer = static_cast<uint32_t>(word & 0xffff);
  if (word >> 16 != due || *offer >= kMostOffers) {
    return absl::DataLossError(
        absl::StrCat("answer ", word, " came where answer ", due, " was due"));
  }
  ++answers_;
  return true;
}

}  // namespace esteira
