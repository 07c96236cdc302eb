#include "worker/communication/host/lane.h"

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

class LaneTest : public ::testing::Test {
 protected:
  bool Send(const Message& message) {
    const absl::StatusOr<bool> written = writer_.Write(message);
    EXPECT_TRUE(written.ok()) << written.status();
    return written.value_or(false);
  }
  bool SendBytes(const std::vector<std::byte>& bytes, uint32_t index = 0) {
    return Send({.tag = {1, 2, index}, .length = bytes.size(), .bytes = bytes.data()});
  }
  // The bytes of the next message, or nothing.
  std::vector<std::byte> Receive(uint32_t index = 0) {
    Message message;
    const absl::StatusOr<bool> there = reader_.Peek(&message);
    EXPECT_TRUE(there.ok()) << there.status();
    if (!there.value_or(false)) return {};
    EXPECT_EQ(message.tag, (Tag{1, 2, index}));
    std::vector<std::byte> bytes(message.bytes, message.bytes + message.length);
    reader_.Consume();
    return bytes;
  }

  std::unique_ptr<Lane> lane_ = std::make_unique<Lane>();
  LaneWriter writer_{lane_.get()};
  LaneReader reader_{lane_.get()};
};

std::vector<std::byte> Bytes(size_t size, size_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed) & 0xff);
  return bytes;
}

TEST_F(LaneTest, MessagesOfAnySizePassThroughManyRounds) {
  uint32_t index = 0;
  for (size_t round = 0; round < 3 * kSlots + 1; ++round) {
    for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, kInlineBytes}) {
      ASSERT_TRUE(SendBytes(Bytes(size, index), index));
      ASSERT_EQ(Receive(index), Bytes(size, index));
      ++index;
    }
    reader_.Publish();
  }
  Message message;
  EXPECT_FALSE(*reader_.Peek(&message));
  ASSERT_TRUE(SendBytes({}));
  ASSERT_TRUE(*reader_.Peek(&message)) << "a message without bytes is one";
  EXPECT_EQ(message.length, 0u);
}

TEST_F(LaneTest, AFullLaneTakesNoMoreUntilSlotsAreGivenBack) {
  for (size_t i = 0; i < kSlots; ++i) ASSERT_TRUE(SendBytes(Bytes(i + 1, i)));
  EXPECT_FALSE(SendBytes(Bytes(1, 0)));
  EXPECT_EQ(Receive(), Bytes(1, 0));
  EXPECT_FALSE(SendBytes(Bytes(1, 0))) << "it is consumed, but not given back";
  EXPECT_FALSE(reader_.Publish()) << "nobody waits";
  EXPECT_TRUE(SendBytes(Bytes(99, 5)));
  EXPECT_FALSE(SendBytes(Bytes(1, 0)));
  writer_.AwaitSlot(true);
  Receive();
  EXPECT_TRUE(reader_.Publish());
  EXPECT_FALSE(reader_.Publish()) << "nothing new";
  writer_.AwaitSlot(false);
  for (size_t i = 2; i < kSlots; ++i) EXPECT_EQ(Receive(), Bytes(i + 1, i));
  EXPECT_EQ(Receive(), Bytes(99, 5));
}

TEST_F(LaneTest, OffersAndAnswersKeepTheirOrder) {
  for (uint32_t i = 0; i < 5 * kMostOffers + 3; ++i) {
    const uint32_t offer = i * 7 % kMostOffers;
    ASSERT_TRUE(Send({.kind = Message::Kind::kOffer,
                      .tag = {1, 2, i},
                      .length = kInlineBytes + 1 + i,
                      .address = 1000 + i,
                      .offer = offer}));
    Message message;
    ASSERT_TRUE(*reader_.Peek(&message));
    EXPECT_EQ(message.address, 1000 + i);
    EXPECT_EQ(message.length, kInlineBytes + 1 + i);
    EXPECT_EQ(message.offer, offer);
    reader_.Consume();
    reader_.Publish();
    writer_.WriteAnswer(offer);
    uint32_t answered = kMostOffers;
    ASSERT_TRUE(*reader_.TakeAnswer(&answered));
    EXPECT_EQ(answered, offer);
    EXPECT_FALSE(*reader_.TakeAnswer(&answered));
  }
}

// What the reader has seen of a message is there, and what it has given back is not needed.
TEST_F(LaneTest, TwoThreadsExchangeWithoutALock) {
  constexpr uint32_t kMessages = 50'000;
  const auto size = [](uint32_t i) { return i * 2654435761u % (i % 50 == 0 ? kInlineBytes : 200); };
  std::thread sender([&] {
    for (uint32_t i = 0; i < kMessages; ++i) {
      const std::vector<std::byte> bytes = Bytes(size(i), i);
      while (!SendBytes(bytes, i)) std::this_thread::yield();
    }
  });
  for (uint32_t i = 0; i < kMessages; ++i) {
    Message message;
    while (!*reader_.Peek(&message)) std::this_thread::yield();
    ASSERT_EQ(message.tag.index, i);
    const std::vector<std::byte> expected = Bytes(size(i), i);
    ASSERT_EQ(message.length, expected.size());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), message.bytes)) << i;
    reader_.Consume();
    reader_.Publish();
  }
  sender.join();
}

TEST_F(LaneTest, WhatNoWriterWritesIsNoticed) {
  struct Fault {
    std::function<void(Lane::Slot&)> make;
    const char* text;
  };
  const Fault faults[] = {
      {[](Lane::Slot& slot) { slot.sequence = 2; }, "message 2 came where message 1 was due"},
      {[](Lane::Slot& slot) { slot.sequence = ~uint64_t{0}; }, "was due"},
      {[](Lane::Slot& slot) { slot.kind = Message::Kind{0}; }, "of kind 0"},
      {[](Lane::Slot& slot) { slot.kind = Message::Kind{3}; }, "of kind 3"},
      {[](Lane::Slot& slot) { slot.length = kInlineBytes + 1; }, "cannot be"},
      {[](Lane::Slot& slot) { slot.length = ~uint64_t{0}; }, "cannot be"},
      {[](Lane::Slot& slot) { slot.kind = Message::Kind::kOffer; }, "cannot be"},
      {[](Lane::Slot& slot) {
         slot.kind = Message::Kind::kOffer;
         slot.length = kInlineBytes + 1;
         slot.offer = kMostOffers;
       },
       "cannot be"},
  };
  for (const Fault& fault : faults) {
    const auto lane = std::make_unique<Lane>();
    const std::vector<std::byte> bytes = Bytes(10, 0);
    ASSERT_TRUE(*LaneWriter(lane.get()).Write({.length = bytes.size(), .bytes = bytes.data()}));
    fault.make(lane->slots[0]);
    Message message;
    const absl::StatusOr<bool> there = LaneReader(lane.get()).Peek(&message);
    EXPECT_EQ(there.status().code(), absl::StatusCode::kDataLoss) << there.status();
    EXPECT_THAT(there.status().message(), HasSubstr(fault.text));
  }
}

TEST_F(LaneTest, AnswersThatCannotBeAreNoticed) {
  for (const uint64_t word :
       {uint64_t{1}, uint64_t{2} << 16, ~uint64_t{0}, uint64_t{1} << 16 | kMostOffers}) {
    lane_->answers[0] = word;
    uint32_t offer = 0;
    const absl::StatusOr<bool> there = reader_.TakeAnswer(&offer);
    if (there.ok()) {
      EXPECT_FALSE(*there) << word;
    } else {
      EXPECT_EQ(there.status().code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST_F(LaneTest, AReaderThatClaimsToHaveReadTheImpossibleIsNoticed) {
  for (size_t i = 0; i < kSlots; ++i) ASSERT_TRUE(SendBytes(Bytes(1, i)));
  for (const uint64_t consumed : {uint64_t{kSlots + 1}, ~uint64_t{0}}) {
    lane_->consumed = consumed;
    LaneWriter writer = writer_;
    EXPECT_EQ(writer.Write(Message{}).status().code(), absl::StatusCode::kDataLoss) << consumed;
  }
}

// Whatever lies in a lane: an error, nothing, or a message whose bytes lie inside the lane.
TEST_F(LaneTest, RandomBytesDoNoHarm) {
  std::mt19937_64 random(5);
  auto* const words = reinterpret_cast<uint64_t*>(lane_.get());
  for (int turn = 0; turn < 200; ++turn) {
    for (size_t i = 0; i < sizeof(Lane) / sizeof(uint64_t); i += 1 + random() % 4) {
      words[i] = random() % 3 == 0 ? random() % 70 : random();
    }
    LaneReader reader(lane_.get());
    for (size_t i = 0; i < kSlots; ++i) {
      Message message;
      if (!reader.Peek(&message).value_or(false)) break;
      if (message.kind == Message::Kind::kInline) {
        EXPECT_LE(message.length, kInlineBytes);
      } else {
        EXPECT_LT(message.offer, kMostOffers);
      }
      reader.Consume();
    }
    uint32_t offer = 0;
    if (reader.TakeAnswer(&offer).value_or(false)) {
      EXPECT_LT(offer, kMostOffers);
    }
    LaneWriter writer(lane_.get());
    for (size_t i = 0; i < 2 * kSlots; ++i) {
      if (!writer.Write(Message{}).value_or(false)) break;
    }
  }
}

}  // namespace
}  // namespace esteira
