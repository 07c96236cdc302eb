#include "worker/trainer/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "esteira/v1/worker.pb.h"

namespace esteira {
namespace {

v1::TrainerReport Line(int rank, const std::string& text) {
  v1::TrainerReport report;
  report.set_rank(rank);
  report.mutable_log()->set_text(text);
  return report;
}

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    near_ = std::make_unique<Channel>(ends[0]);
    far_ = std::make_unique<Channel>(ends[1]);
    far_fd_ = ends[1];
  }

  // Raw bytes to the near end.
  void Inject(const std::string& bytes) {
    ASSERT_EQ(write(far_fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  absl::StatusCode ReadCode() {
    v1::TrainerReport report;
    return near_->Read(report).code();
  }

  std::unique_ptr<Channel> near_, far_;
  int far_fd_ = -1;
};

TEST_F(ChannelTest, MessagesArriveWholeInOrderBothWays) {
  // Small enough for the socket's buffer: nobody reads meanwhile.
  for (const size_t size : {0u, 1u, 3u, 252u, 253u, 254u, 65537u}) {
    const std::string text(size, 'x');
    ASSERT_TRUE(near_->Write(Line(1, text)).ok());
    ASSERT_TRUE(far_->Write(Line(2, text)).ok());
    v1::TrainerReport report;
    ASSERT_TRUE(far_->Read(report).ok());
    EXPECT_EQ(report.rank(), 1);
    EXPECT_EQ(report.log().text(), text);
    ASSERT_TRUE(near_->Read(report).ok());
    EXPECT_EQ(report.rank(), 2);
    EXPECT_EQ(report.log().text(), text);
  }
}

TEST_F(ChannelTest, AnEmptyMessageIsAMessage) {
  ASSERT_TRUE(near_->Write(v1::TrainerReport()).ok());
  v1::TrainerReport report = Line(7, "left from before");
  ASSERT_TRUE(far_->Read(report).ok());
  EXPECT_EQ(report.ByteSizeLong(), 0u);
}

TEST_F(ChannelTest, FramesOfTwoWritersNeverMix) {
  constexpr int kMessages = 40;
  const std::string text(30011, 'y');  // several fill the socket's buffer, so that writes are cut
  std::thread writers[2];
  for (int w = 0; w < 2; ++w) {
    writers[w] = std::thread([&, w] {
      for (int i = 0; i < kMessages; ++i) {
        v1::TrainerReport report = Line(w, text);
        report.set_epoch(i);
        EXPECT_TRUE(far_->Write(report).ok());
      }
    });
  }
  int next[2] = {0, 0};
  for (int i = 0; i < 2 * kMessages; ++i) {
    v1::TrainerReport report;
    ASSERT_TRUE(near_->Read(report).ok());
    ASSERT_TRUE(report.rank() == 0 || report.rank() == 1);
    EXPECT_EQ(report.epoch(), next[report.rank()]++);
    EXPECT_EQ(report.log().text(), text);
  }
  for (std::thread& writer : writers) writer.join();
}

TEST_F(ChannelTest, AMessageOverTheLimitIsRefusedAndNothingIsSent) {
  const v1::TrainerReport big = Line(0, std::string(Channel::kMaxMessageBytes, 'z'));
  EXPECT_EQ(far_->Write(big).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(far_->Write(Line(3, "after")).ok());
  v1::TrainerReport report;
  ASSERT_TRUE(near_->Read(report).ok());
  EXPECT_EQ(report.log().text(), "after");
}

TEST_F(ChannelTest, AnAbsurdLengthIsDataLoss) {
  Inject("\xff\xff\xff\xff");
  EXPECT_EQ(ReadCode(), absl::StatusCode::kDataLoss);
}

TEST_F(ChannelTest, OneByteOverTheLimitIsDataLoss) {
  Inject(std::string("\x01\x00\x00\x10", 4));  // 2^28 + 1
  EXPECT_EQ(ReadCode(), absl::StatusCode::kDataLoss);
}

TEST_F(ChannelTest, AFrameOfGarbageIsDataLossAndTheNextFrameIsRead) {
  Inject(std::string("\x03\x00\x00\x00\xff\xff\xff", 7));
  EXPECT_EQ(ReadCode(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(far_->Write(Line(3, "after")).ok());
  EXPECT_EQ(ReadCode(), absl::StatusCode::kOk);
}

TEST_F(ChannelTest, TheEndOfTheStreamIsUnavailable) {
  ASSERT_TRUE(far_->Write(Line(1, "last")).ok());
  far_ = nullptr;
  EXPECT_EQ(ReadCode(), absl::StatusCode::kOk);
  EXPECT_EQ(ReadCode(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(near_->Write(Line(1, "to nobody")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, AnEndWithinAFrameIsUnavailable) {
  Inject(std::string("\x08\x00\x00\x00half", 8));
  far_ = nullptr;
  EXPECT_EQ(ReadCode(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, AnEndWithinALengthIsUnavailable) {
  Inject(std::string("\x08\x00", 2));
  far_ = nullptr;
  EXPECT_EQ(ReadCode(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, StopReadingEndsABlockedReadAndLeavesWriteWorking) {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::thread reader([&] { code = ReadCode(); });
  near_->StopReading();
  reader.join();
  EXPECT_EQ(code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadCode(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(near_->Write(Line(5, "still")).ok());
  v1::TrainerReport report;
  ASSERT_TRUE(far_->Read(report).ok());
  EXPECT_EQ(report.log().text(), "still");
  EXPECT_EQ(far_->Write(Line(5, "to nobody")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, WhatArrivedBeforeStopReadingIsStillRead) {
  ASSERT_TRUE(far_->Write(Line(1, "early")).ok());
  near_->StopReading();
  EXPECT_EQ(ReadCode(), absl::StatusCode::kOk);
  EXPECT_EQ(ReadCode(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace esteira
