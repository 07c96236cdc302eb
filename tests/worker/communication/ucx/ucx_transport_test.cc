#include "worker/communication/ucx/ucx_transport.h"

#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/communication/ucx/peer_process.h"
#include "tests/worker/communication/ucx/raw_ucx_sender.h"
#include "worker/communication/ucx/address.h"
#include "worker/communication/ucx/frame.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPlenty = absl::Seconds(30);
const Tag kTag{1, 2, 3};
// One that refuses is enough.
const UcxOptions kOverTcp{
    .job_id = "job", .epoch = 7, .rank = 1, .size = 2, .read_peer_memory = false};
constexpr uint64_t kFirst = 2;  // sequence of the first message after the two that greet

Transfer Send(int peer, std::span<std::byte> bytes) {
  return {Transfer::Direction::kSend, peer, kTag, bytes};
}
Transfer Receive(int peer, std::span<std::byte> bytes) {
  return {Transfer::Direction::kReceive, peer, kTag, bytes};
}

std::unique_ptr<UcxEndpoint> Open(const UcxOptions& options) {
  auto endpoint = OpenUcx(options);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return *std::move(endpoint);
}

// Two endpoints and, after Connect, two transports.
class UcxTransportTest : public ::testing::Test {
 protected:
  void OpenPair(const UcxOptions& second = {.job_id = "job", .epoch = 7, .rank = 1, .size = 2}) {
    OpenPair({.job_id = "job",
              .epoch = 7,
              .rank = 0,
              .size = 2,
              .connect_timeout = second.connect_timeout},
             second);
  }
  void OpenPair(const UcxOptions& first, const UcxOptions& second) {
    endpoints_.push_back(Open(first));
    endpoints_.push_back(Open(second));
    for (const auto& endpoint : endpoints_) {
      addresses_.push_back(endpoint->address());
      versions_.push_back(endpoint->version());
    }
  }
  std::array<absl::Status, 2> ConnectBoth() {
    std::array<absl::Status, 2> statuses;
    const auto connect = [&](size_t rank) {
      auto transport = endpoints_[rank]->Connect(addresses_, versions_);
      statuses[rank] = transport.status();
      if (transport.ok()) transports_[rank] = *std::move(transport);
    };
    std::thread other(connect, 1);
    connect(0);
    other.join();
    return statuses;
  }
  void Reset() {
    for (auto& transport : transports_) transport.reset();
    endpoints_.clear();
    addresses_.clear();
    versions_.clear();
  }
  void AwaitDropped(int64_t count) {
    while (transports_[0]->counters().messages_dropped < count) std::this_thread::yield();
    EXPECT_EQ(transports_[0]->counters().messages_dropped, count);
  }

  std::vector<std::unique_ptr<UcxEndpoint>> endpoints_;
  std::vector<std::string> addresses_;
  std::vector<std::string> versions_;
  std::array<std::unique_ptr<Transport>, 2> transports_;
};

TEST_F(UcxTransportTest, ConnectsOnce) {
  OpenPair();
  for (const absl::Status& status : ConnectBoth()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(endpoints_[0]->Connect(addresses_, versions_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(UcxTransportTest, AnotherVersionIsRefusedBeforeAnythingIsConnected) {
  OpenPair();
  versions_[1] = "ucx 1.12.0 tcp,self";
  const absl::Status status = endpoints_[0]->Connect(addresses_, versions_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 runs \"ucx 1.12.0 tcp,self\""));
  EXPECT_THAT(status.message(), HasSubstr(endpoints_[0]->version()));
  // Nothing has happened: it can still be connected.
  versions_[1] = endpoints_[1]->version();
  for (const absl::Status& again : ConnectBoth()) EXPECT_TRUE(again.ok()) << again;
}

TEST_F(UcxTransportTest, ADamagedAddressIsRefused) {
  OpenPair();
  const std::string good = addresses_[1];
  std::string flipped = good;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  for (const std::string& bad : {std::string(), std::string("garbage"), std::string(400, '\xff'),
                                 good.substr(0, good.size() - 1), good + "x", flipped}) {
    addresses_[1] = bad;
    const absl::Status status = endpoints_[0]->Connect(addresses_, versions_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("address of rank 1"));
  }
  addresses_.pop_back();
  EXPECT_EQ(endpoints_[0]->Connect(addresses_, versions_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(OpenUcxTest, RefusesWhatCannotBe) {
  EXPECT_EQ(OpenUcx({.job_id = "job", .rank = 2, .size = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status status =
      OpenUcx({.job_id = "job", .rank = 0, .size = 1, .network_device = "no-such-device"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no-such-device"));
}

TEST_F(UcxTransportTest, ARankOfAnotherEpochIsNotHeard) {
  OpenPair({.job_id = "job",
            .epoch = 6,
            .rank = 1,
            .size = 2,
            .connect_timeout = absl::Milliseconds(400)});
  for (const absl::Status& status : ConnectBoth()) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("connecting the mesh"));
    EXPECT_THAT(status.message(), HasSubstr("rank"));
  }
  EXPECT_FALSE(endpoints_[0]->Connect(addresses_, versions_).ok()) << "it has failed for good";
}

TEST_F(UcxTransportTest, AStaleRankIsDroppedByAMeshThatStands) {
  OpenPair();
  ConnectBoth();
  const auto stale = Open({.job_id = "job",
                           .epoch = 6,
                           .rank = 1,
                           .size = 2,
                           .connect_timeout = absl::Milliseconds(400)});
  EXPECT_EQ(stale->Connect({addresses_[0], stale->address()}, versions_).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  while (transports_[0]->counters().messages_dropped < 1) std::this_thread::yield();
  std::vector<std::byte> bytes(10);
  std::thread other([&] { EXPECT_TRUE(transports_[1]->Run({{Send(0, bytes)}}, kPlenty).ok()); });
  std::vector<std::byte> received(10);
  EXPECT_TRUE(transports_[0]->Run({{Receive(1, received)}}, kPlenty).ok());
  other.join();
}

// Every bad header, in front of small and of large messages, while a receive with the same tag and
// size is posted.
TEST_F(UcxTransportTest, BadHeadersAreCountedAndTouchNoBuffer) {
  OpenPair(kOverTcp);
  ConnectBoth();
  const RankIdentity real{.job_hash = HashName("job"), .epoch = 7, .rank = 1, .size = 2};
  const std::function<void(FrameHeader&)> faults[] = {
      [](FrameHeader& header) { header.magic ^= 1; },
      [](FrameHeader& header) { ++header.job_hash; },
      [](FrameHeader& header) { ++header.epoch; },
      [](FrameHeader& header) { header.destination = 1; },
      [](FrameHeader& header) { header.source = 0; },
      [](FrameHeader& header) { header.source = 2; },
      [](FrameHeader& header) { --header.length; },
  };
  int64_t dropped = 0;
  for (const size_t size : {100u, 300'000u}) {
    const unsigned flags = size > 65536 ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    std::vector<std::byte> evil(size, std::byte{0x66}), good(size, std::byte{0x11});
    std::vector<std::byte> received(size);
    std::thread receiver(
        [&] { EXPECT_TRUE(transports_[0]->Run({{Receive(1, received)}}, kPlenty).ok()); });
    {
      RawUcxSender sender(addresses_[0]);
      const auto send = [&](const FrameHeader& header, size_t header_bytes) {
        const ucs_status_t status =
            sender.Send(std::as_bytes(std::span(&header, 1)).first(header_bytes), evil, flags);
        EXPECT_EQ(status, size > 65536 ? UCS_ERR_REJECTED : UCS_OK);
        AwaitDropped(++dropped);
      };
      for (const auto& fault : faults) {
        FrameHeader header = MakeFrame(real, FrameKind::kData, 0, kTag, kFirst, size);
        fault(header);
        Seal(&header);
        send(header, sizeof(header));
      }
      FrameHeader unsealed = MakeFrame(real, FrameKind::kData, 0, kTag, kFirst, size);
      unsealed.crc ^= 1;
      send(unsealed, sizeof(unsealed));
      send(MakeFrame(real, FrameKind::kData, 0, kTag, kFirst, size), sizeof(FrameHeader) - 8);
    }
    EXPECT_TRUE(transports_[1]->Run({{Send(0, good)}}, kPlenty).ok());
    receiver.join();
    EXPECT_EQ(received, good);
  }
}

TEST_F(UcxTransportTest, ALostOrRepeatedMessageIsNoticed) {
  OpenPair(kOverTcp);
  ConnectBoth();
  const RankIdentity real{.job_hash = HashName("job"), .epoch = 7, .rank = 1, .size = 2};
  RawUcxSender sender(addresses_[0]);
  const FrameHeader header = MakeFrame(real, FrameKind::kData, 0, kTag, kFirst + 1, 0);
  EXPECT_EQ(sender.Send(std::as_bytes(std::span(&header, 1)), {}, UCP_AM_SEND_FLAG_EAGER), UCS_OK);
  std::vector<std::byte> bytes(4);
  const absl::Status status = transports_[0]->Run({{Receive(1, bytes)}}, kPlenty);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("message 3 of rank 1 came where message 2 was due"));
}

// Large messages, each way, where memory is read on both sides, on one, and on none.
TEST_F(UcxTransportTest, LargeMessagesArriveWhoeverMayReadWhom) {
  for (const auto& [first, second] :
       {std::pair{true, true}, std::pair{true, false}, std::pair{false, false}}) {
    Reset();
    const auto options = [](int rank, bool read) {
      return UcxOptions{
          .job_id = "job", .epoch = 7, .rank = rank, .size = 2, .read_peer_memory = read};
    };
    OpenPair(options(0, first), options(1, second));
    ConnectBoth();
    for (const auto& endpoint : endpoints_) {
      EXPECT_EQ(endpoint->num_host_peers(), first && second ? 1 : 0);
    }
    std::vector<std::byte> sent(3'333'333, std::byte{0x5a}), there(sent.size()), back(sent.size());
    sent.front() = sent.back() = std::byte{0x77};
    std::thread other([&] {
      EXPECT_TRUE(transports_[1]->Run({{Receive(0, there)}}, kPlenty).ok());
      EXPECT_TRUE(transports_[1]->Run({{Send(0, there)}}, kPlenty).ok());
    });
    EXPECT_TRUE(transports_[0]->Run({{Send(1, sent), Receive(1, back)}}, kPlenty).ok());
    other.join();
    EXPECT_EQ(back, sent);
    EXPECT_EQ(transports_[0]->counters().bytes_sent, std::ssize(sent));
    const auto in_segments = [&](int rank, std::vector<std::byte> received) {
      std::vector<std::byte> whole;
      const auto arrived = [&](size_t offset, size_t count) {
        EXPECT_EQ(offset, whole.size());
        whole.insert(whole.end(), received.begin(),
                     received.begin() + static_cast<std::ptrdiff_t>(count));
      };
      EXPECT_TRUE(transports_[static_cast<size_t>(rank)]
                      ->RunInSegments({{Send(1 - rank, sent), Receive(1 - rank, received)}},
                                      kPlenty, arrived)
                      .ok());
      EXPECT_EQ(whole, sent);
    };
    std::thread peer(in_segments, 1, std::vector<std::byte>(sent.size()));
    in_segments(0, std::vector<std::byte>(sent.size()));
    peer.join();
  }
}

// Ranks 0 and 2 live here, rank 1 in a process of its own.
class PeerProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<UcxEndpoint>> endpoints;
    for (int rank : {0, 2}) {
      endpoints.push_back(Open({.job_id = "killed", .epoch = 3, .rank = rank, .size = 3}));
    }
    const std::vector<std::string> addresses = {endpoints[0]->address(), peer_.address(),
                                                endpoints[1]->address()};
    const std::vector<std::string> versions(3, endpoints[0]->version());
    peer_.SendAddresses(addresses);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        auto transport = endpoints[i]->Connect(addresses, versions);
        ASSERT_TRUE(transport.ok()) << transport.status();
        survivors_[i] = *std::move(transport);
      });
    }
    for (std::thread& thread : threads) thread.join();
    peer_.AwaitReady();
  }

  PeerProcess peer_{1, 3};
  std::array<std::unique_ptr<Transport>, 2> survivors_;
};

// One survivor waits for the killed rank, the other one for the first survivor: both learn who was
// lost.
TEST_F(PeerProcessTest, AKilledRankIsNamedByAllWithinASecond) {
  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  std::atomic<int> started = 0;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::vector<std::byte> bytes(4);
      ++started;
      const absl::Status status = survivors_[i]->Run({{Receive(i == 0 ? 1 : 0, bytes)}}, kPlenty);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost"));
    });
  }
  while (started < 2) std::this_thread::yield();
  peer_.Signal(SIGKILL);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

TEST_F(PeerProcessTest, ALargeSendToAKilledRankFails) {
  std::atomic<bool> started = false;
  std::thread sender([&] {
    std::vector<std::byte> bytes(20 << 20);
    started = true;
    const absl::Status status = survivors_[0]->Run({{Send(1, bytes)}}, kPlenty);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  });
  while (!started) std::this_thread::yield();
  peer_.Signal(SIGKILL);
  sender.join();
}

// No connection breaks: only the deadline tells. The buffers come back although the peer says
// nothing.
TEST_F(PeerProcessTest, ARankThatStandsStillRunsIntoTheDeadline) {
  peer_.Signal(SIGSTOP);
  std::vector<std::byte> sent(8 << 20), received(4);
  const absl::Time start = absl::Now();
  const absl::Status status =
      survivors_[0]->Run({{Send(1, sent), Receive(1, received)}}, absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  survivors_[0].reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

// At whatever instant: while it writes a message, or while its memory is read.
TEST(UcxProcessTest, ARankThatIsKilledInTheMiddleOfAnExchangeIsNamed) {
  std::minstd_rand random(7);
  for (int round = 0; round < 20; ++round) {
    PeerProcess peer(1, 2, /*exchanges_with=*/0);
    const auto endpoint = Open({.job_id = "killed", .epoch = 3, .rank = 0, .size = 2});
    const std::vector<std::string> addresses = {endpoint->address(), peer.address()};
    peer.SendAddresses(addresses);
    auto transport = endpoint->Connect(addresses, {endpoint->version(), endpoint->version()});
    ASSERT_TRUE(transport.ok()) << transport.status();
    absl::Status status;
    std::thread exchange([&] { status = ExchangeForever(**transport, 1); });
    peer.AwaitReady();
    const absl::Time kill = absl::Now() + absl::Microseconds(random() % 20'000);
    while (absl::Now() < kill) std::this_thread::yield();
    peer.Signal(SIGKILL);
    exchange.join();
    EXPECT_LT(absl::Now() - kill, absl::Seconds(2));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost"));
  }
}

TEST(UcxProcessTest, LeavesNothingInSharedMemory) {
  const auto list = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("ucx") != std::string::npos) {
        names.insert(entry.path().filename());
      }
    }
    return names;
  };
  const std::set<std::string> before = list();
  auto endpoint = Open({.job_id = "job"});
  EXPECT_TRUE(endpoint->Connect({endpoint->address()}, {endpoint->version()}).ok());
  EXPECT_EQ(list(), before);
}

}  // namespace
}  // namespace esteira
