#include "worker/communication/ucx/frame.h"

#include <cstring>
#include <functional>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "worker/communication/ucx/address.h"
#include "worker/communication/ucx/crc32c.h"

namespace esteira {
namespace {

std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32cTest, HasThePublishedCheckValue) {
  EXPECT_EQ(Crc32c(BytesOf("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

class FrameTest : public ::testing::Test {
 protected:
  FrameHeader Good() const {
    return MakeFrame(sender_, FrameKind::kData, receiver_.rank, {1, 2, 3}, 9, 100);
  }
  absl::Status Read(const FrameHeader& header, uint64_t length = 100) const {
    return ReadFrame(receiver_, std::as_bytes(std::span(&header, 1)), length).status();
  }

  const RankIdentity sender_{.job_hash = 77, .epoch = 5, .rank = 1, .size = 3};
  const RankIdentity receiver_{.job_hash = 77, .epoch = 5, .rank = 2, .size = 3};
};

TEST_F(FrameTest, ComesBackAsItWasMade) {
  const FrameHeader good = Good();
  const auto read = ReadFrame(receiver_, std::as_bytes(std::span(&good, 1)), 100);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->source, 1);
  EXPECT_EQ(read->kind, FrameKind::kData);
  EXPECT_EQ(read->tag, (Tag{1, 2, 3}));
  EXPECT_EQ(read->sequence, 9u);
  EXPECT_EQ(read->length, 100u);
}

TEST_F(FrameTest, AnyFlippedBitIsFound) {
  for (size_t bit = 0; bit < sizeof(FrameHeader) * 8; ++bit) {
    FrameHeader header = Good();
    auto* const bytes = reinterpret_cast<unsigned char*>(&header);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
    EXPECT_EQ(Read(header).code(), absl::StatusCode::kDataLoss) << bit;
  }
}

TEST_F(FrameTest, OtherSizesAreDamage) {
  const FrameHeader good = Good();
  const auto bytes = std::as_bytes(std::span(&good, 1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ReadFrame(receiver_, bytes.first(size), 100).status().code(),
              absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(Read(good, 99).code(), absl::StatusCode::kDataLoss);
}

TEST_F(FrameTest, WhatIsMeantForSomebodyElseIsRefused) {
  const std::function<void(FrameHeader&)> changes[] = {
      [](FrameHeader& header) { ++header.job_hash; },
      [](FrameHeader& header) { --header.epoch; },
      [](FrameHeader& header) { header.destination = 0; },
      [](FrameHeader& header) { header.source = 3; },
      [](FrameHeader& header) { header.source = -1; },
      [](FrameHeader& header) { header.source = 2; },
  };
  for (const auto& change : changes) {
    FrameHeader header = Good();
    change(header);
    Seal(&header);
    EXPECT_EQ(Read(header).code(), absl::StatusCode::kAborted);
  }
}

TEST(AddressTest, ComesBackAsItWasWrapped) {
  const std::string body("\0\1ucx\xff", 6);
  const auto unwrapped = UnwrapAddress(WrapAddress(body));
  ASSERT_TRUE(unwrapped.ok()) << unwrapped.status();
  EXPECT_EQ(*unwrapped, body);
}

TEST(AddressTest, DamageIsRefused) {
  const std::string good = WrapAddress("an address");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(UnwrapAddress(good.substr(0, size)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(UnwrapAddress(good + "x").ok());
  EXPECT_FALSE(UnwrapAddress(WrapAddress("")).ok());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_FALSE(UnwrapAddress(damaged).ok()) << i;
  }
}

}  // namespace
}  // namespace esteira
