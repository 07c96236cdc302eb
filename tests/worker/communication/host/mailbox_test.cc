#include "worker/communication/host/mailbox.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

const RankIdentity kFirst{.job_hash = 5, .epoch = 2, .rank = 0, .size = 3};
const RankIdentity kSecond{.job_hash = 5, .epoch = 2, .rank = 1, .size = 3};

class MailboxTest : public ::testing::Test {
 protected:
  absl::Status Open(const RankIdentity& self, const MailboxAddress& address, int peer = 0) {
    return PeerMailbox::Open(self, peer, address).status();
  }
  std::unique_ptr<Mailbox> mailbox_ = *Mailbox::Make(kFirst);
};

TEST_F(MailboxTest, BothSidesSeeTheSameLane) {
  const absl::StatusOr<Lane*> from_second = mailbox_->AddLane(1);
  ASSERT_TRUE(from_second.ok()) << from_second.status();
  const auto seen = PeerMailbox::Open(kSecond, 0, mailbox_->address());
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_NE((*seen)->lane(), *from_second) << "mapped twice";
  EXPECT_EQ((*seen)->process(), getpid());
  mailbox_->Hide();
  ASSERT_TRUE(*LaneWriter((*seen)->lane()).Write(Message{.tag = {7, 8, 9}}));
  Message message;
  ASSERT_TRUE(*LaneReader(*from_second).Peek(&message));
  EXPECT_EQ(message.tag, (Tag{7, 8, 9}));
  // It stays there when the owner is gone.
  mailbox_ = nullptr;
  EXPECT_TRUE(*LaneWriter((*seen)->lane()).Write(Message{}));
}

TEST_F(MailboxTest, OnlyThatOfTheRightRankJobAndEpochIsTaken) {
  RankIdentity other = kSecond;
  EXPECT_TRUE(Open(other, mailbox_->address()).ok());
  EXPECT_FALSE(Open(other, mailbox_->address(), /*peer=*/2).ok());
  ++other.epoch;
  EXPECT_FALSE(Open(other, mailbox_->address()).ok());
  other = kSecond;
  ++other.job_hash;
  EXPECT_FALSE(Open(other, mailbox_->address()).ok());
  other = kSecond;
  ++other.size;
  EXPECT_FALSE(Open(other, mailbox_->address()).ok());
}

TEST_F(MailboxTest, WhatIsNoMailboxIsRefused) {
  const MailboxAddress good = mailbox_->address();
  EXPECT_FALSE(Open(kSecond, {}).ok());
  MailboxAddress address = good;
  ++address.proof.value;
  EXPECT_FALSE(Open(kSecond, address).ok()) << "another process";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int file = open("/proc/self/exe", O_RDONLY);
  for (const int descriptor : {ends[0], ends[1], file, -1, 1 << 20}) {
    address = good;
    address.descriptor = descriptor;
    EXPECT_FALSE(Open(kSecond, address).ok()) << descriptor;
  }
  for (const int descriptor : {ends[0], ends[1], file}) close(descriptor);
  mailbox_->Hide();
  EXPECT_FALSE(Open(kSecond, good).ok());
}

// Otherwise a peer could take the memory away under a rank that reads it.
TEST_F(MailboxTest, ItsSizeIsFixed) {
  const std::string path = absl::StrCat("/proc/self/fd/", mailbox_->address().descriptor);
  const int descriptor = open(path.c_str(), O_RDWR);
  ASSERT_GE(descriptor, 0);
  EXPECT_NE(ftruncate(descriptor, 0), 0);
  EXPECT_NE(ftruncate(descriptor, 1 << 30), 0);
  close(descriptor);
}

}  // namespace
}  // namespace esteira
