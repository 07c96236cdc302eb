#include "worker/communication/host/host_mesh.h"

#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/communication/host/mailbox.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr absl::Duration kPlenty = absl::Seconds(30);
const Tag kTag{1, 2, 3};

Transfer Send(int peer, Bytes& bytes, const Tag& tag = kTag) {
  return {Transfer::Direction::kSend, peer, tag, bytes};
}
Transfer Receive(int peer, Bytes& bytes, const Tag& tag = kTag) {
  return {Transfer::Direction::kReceive, peer, tag, bytes};
}
Bytes Pattern(size_t size, size_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed) & 0xff);
  return bytes;
}

RankIdentity Identity(int rank) { return {.job_hash = 5, .epoch = 2, .rank = rank, .size = 2}; }

// A mesh whose failures are its own: it is told what it has reported.
struct Lonely {
  explicit Lonely(int rank)
      : mesh(Identity(rank),
             [this](const absl::Status& cause, int /*origin*/) { mesh.Fail(cause); }) {}
  HostMesh mesh;
};

void Settle(HostMesh& mesh, int rank) {
  std::vector<uint8_t> met(2, 1);
  met[static_cast<size_t>(rank)] = 0;
  mesh.Settle(met);
}

// Two ranks of this process.
class HostMeshTest : public ::testing::Test {
 protected:
  HostMeshTest() {
    EXPECT_TRUE(first_.mesh.Meet(1, second_.mesh.address()));
    EXPECT_TRUE(second_.mesh.Meet(0, first_.mesh.address()));
    Settle(first_.mesh, 0);
    Settle(second_.mesh, 1);
  }
  HostMesh& At(int rank) { return rank == 0 ? first_.mesh : second_.mesh; }
  // Both ranks, each on a thread of its own.
  void OnBoth(const std::function<void(int rank)>& body) {
    std::thread other(body, 1);
    body(0);
    other.join();
  }

  Lonely first_{0};
  Lonely second_{1};
};

TEST_F(HostMeshTest, ReachesWhomItHasMet) {
  EXPECT_TRUE(At(0).Reaches(1));
  for (const int rank : {0, -1, 2}) EXPECT_FALSE(At(0).Reaches(rank));
  Lonely alone(0);
  Settle(alone.mesh, 0);
  EXPECT_FALSE(alone.mesh.Reaches(1));
}

TEST_F(HostMeshTest, WhoWasNotMetByAPeerDoesNotReachIt) {
  Lonely first(0), second(1);
  EXPECT_TRUE(first.mesh.Meet(1, second.mesh.address()));
  first.mesh.Settle(std::vector<uint8_t>(2));
  EXPECT_FALSE(first.mesh.Reaches(1));
}

// More messages than a lane has slots, and than offers there can be; both ways at once.
TEST_F(HostMeshTest, AGroupLargerThanALaneDoesNotDeadlock) {
  for (const size_t size : {size_t{0}, size_t{100}, kInlineBytes, kInlineBytes + 1}) {
    OnBoth([&](int rank) {
      std::vector<Bytes> sent, received;
      for (size_t i = 0; i < 3 * kMostOffers; ++i) {
        sent.push_back(Pattern(size, i));
        received.emplace_back(size);
      }
      std::vector<Transfer> group;
      for (Bytes& bytes : sent) group.push_back(Send(1 - rank, bytes));
      for (Bytes& bytes : received) group.push_back(Receive(1 - rank, bytes));
      const absl::Status status = At(rank).Run(group, kPlenty);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(received, sent) << size;
    });
  }
}

// The receiver comes late, and the sender has long gone to sleep over a full lane.
TEST_F(HostMeshTest, ASenderThatWaitsForASlotIsWoken) {
  Bytes bytes(64);
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    for (size_t i = 0; i < 5 * kSlots; ++i) {
      EXPECT_TRUE(At(0).Run({{Send(1, bytes)}}, kPlenty).ok());
      ++sent;
    }
  });
  while (sent < static_cast<int>(kSlots)) std::this_thread::yield();
  const absl::Time start = absl::Now();
  while (absl::Now() < start + absl::Milliseconds(5)) std::this_thread::yield();
  EXPECT_EQ(sent, static_cast<int>(kSlots)) << "the lane is full";
  Bytes received(64);
  for (size_t i = 0; i < 5 * kSlots; ++i) {
    EXPECT_TRUE(At(1).Run({{Receive(0, received)}}, kPlenty).ok());
  }
  sender.join();
}

// Replies come just when the other side stops polling and falls asleep.
TEST_F(HostMeshTest, NoMessageIsSleptThrough) {
  constexpr int kMessages = 10'000;
  const absl::Duration limit = absl::Seconds(10);
  OnBoth([&](int rank) {
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    Bytes bytes(8);
    for (int i = 0; i < kMessages; ++i) {
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::nanoseconds(random() % 120'000);
      while (rank == 0 && std::chrono::steady_clock::now() < until) {
      }
      const Transfer transfer =
          (i % 2 == 0) == (rank == 0) ? Send(1 - rank, bytes) : Receive(1 - rank, bytes);
      const absl::Status status = At(rank).Run({{transfer}}, limit);
      ASSERT_TRUE(status.ok()) << status << ", message " << i;
    }
  });
}

// Some threads wait long, others exchange; whoever sleeps for all leaves at any time.
TEST_F(HostMeshTest, ThreadsServeEachOther) {
  constexpr int kThreads = 5;
  constexpr uint32_t kMessages = 400;
  OnBoth([&](int rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::minstd_rand random(static_cast<unsigned>(thread * 2 + rank + 1));
        for (uint32_t i = 0; i < kMessages; ++i) {
          const size_t size = (i * 7919u + static_cast<size_t>(thread)) % (2 * kInlineBytes);
          Bytes pattern = Pattern(size, i), received(size);
          const bool sends = (rank + thread) % 2 == 0;
          const auto until = std::chrono::steady_clock::now() +
                             std::chrono::microseconds(sends && i % 8 == 0 ? random() % 300 : 0);
          while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
          const Tag tag{9, static_cast<uint32_t>(thread), i};
          const absl::Status status = At(rank).Run(
              {{sends ? Send(1 - rank, pattern, tag) : Receive(1 - rank, received, tag)}}, kPlenty);
          ASSERT_TRUE(status.ok()) << status << ", thread " << thread << ", message " << i;
          if (!sends) {
            ASSERT_EQ(received, pattern);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(HostMeshTest, WhoSleepsForAllHandsOverWhenItLeaves) {
  const auto wait = [] {
    const absl::Time until = absl::Now() + absl::Milliseconds(1);
    while (absl::Now() < until) std::this_thread::yield();
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> sleepers;
    for (uint32_t i = 0; i < 3; ++i) {
      sleepers.emplace_back([&, i] {
        Bytes bytes(4);
        const absl::Status status = At(0).Run({{Receive(1, bytes, {1, 0, i})}}, absl::Seconds(5));
        EXPECT_TRUE(status.ok()) << status;
      });
      wait();
    }
    for (uint32_t i = 0; i < 3; ++i) {
      Bytes bytes(4);
      EXPECT_TRUE(At(1).Run({{Send(0, bytes, {1, 0, i})}}, kPlenty).ok());
      sleepers[i].join();
      wait();
    }
  }
}

// The thread that sleeps at the doorbell is not the one whose time runs out.
TEST_F(HostMeshTest, EveryThreadKeepsItsOwnDeadline) {
  std::atomic<bool> started = false;
  std::thread patient([&] {
    Bytes bytes(4);
    started = true;
    EXPECT_EQ(At(0).Run({{Receive(1, bytes, {1, 0, 1})}}, kPlenty).code(),
              absl::StatusCode::kDeadlineExceeded)
        << "of the other thread";
  });
  while (!started) std::this_thread::yield();
  Bytes bytes(4);
  const absl::Time start = absl::Now();
  const absl::Status status = At(0).Run({{Receive(1, bytes, {1, 0, 2})}}, absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("tag 1/0/2"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  patient.join();
}

TEST_F(HostMeshTest, WhatCameBeforeADepartureStillArrives) {
  Bytes bytes(10);
  EXPECT_TRUE(At(1).Run({{Send(0, bytes)}}, kPlenty).ok());
  At(0).Depart(1);
  EXPECT_TRUE(At(0).Run({{Receive(1, bytes)}}, kPlenty).ok());
  const absl::Status status = At(0).Run({{Receive(1, bytes)}}, kPlenty);
  EXPECT_EQ(status, RankClosed(1));
}

// The second rank has not been told: it waits for that, and takes nothing for a message.
TEST_F(HostMeshTest, WhatAFailedSenderHasOfferedIsNotReceived) {
  Bytes sent(kInlineBytes + 1), received(kInlineBytes + 1);
  EXPECT_EQ(At(0).Run({{Send(1, sent)}}, absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(At(1).Run({{Receive(0, received)}}, absl::Milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(HostMeshTest, FailWakesThoseWhoSleep) {
  std::atomic<int> started = 0;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Bytes bytes(4);
      ++started;
      EXPECT_EQ(At(0).Run({{Receive(1, bytes, {1, 0, i})}}, kPlenty), RankClosed(9));
    });
  }
  while (started < 3) std::this_thread::yield();
  const absl::Time start = absl::Now();
  while (absl::Now() < start + absl::Milliseconds(3)) std::this_thread::yield();
  At(0).Fail(RankClosed(9));
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

// Rank 1 is not a mesh: its lane is written by hand.
class BrokenPeerTest : public ::testing::Test {
 protected:
  BrokenPeerTest() {
    const MailboxAddress address = first_.mesh.address();
    EXPECT_TRUE(first_.mesh.Meet(1, peer_->address()));
    to_first_ = *PeerMailbox::Open(Identity(1), 0, address);
    Settle(first_.mesh, 0);
  }
  void Say(const Message& message) {
    EXPECT_TRUE(writer().Write(message).value_or(false));
    to_first_->doorbell().RingIfAwaited();
  }
  LaneWriter& writer() {
    if (!writer_.has_value()) writer_.emplace(to_first_->lane());
    return *writer_;
  }

  Lonely first_{0};
  std::unique_ptr<Mailbox> peer_ = *Mailbox::Make(Identity(1));
  std::unique_ptr<PeerMailbox> to_first_;
  std::optional<LaneWriter> writer_;
};

constexpr uint64_t kSize = 100'000;

// Messages come without a ring, as they do while a thread polls.
TEST_F(BrokenPeerTest, WhoSleepsIsWokenWhenAnotherThreadTakesItsMessage) {
  uint32_t offer = 0;
  for (const size_t size : {size_t{4}, kInlineBytes, size_t{kSize}}) {
    const Bytes sent = Pattern(size, 1);
    Bytes received(size), empty;
    std::thread sleeper([&] {
      const absl::Status status =
          first_.mesh.Run({{Receive(1, received, {1, 0, 1})}}, absl::Seconds(5));
      EXPECT_TRUE(status.ok()) << status;
    });
    const absl::Time asleep = absl::Now() + absl::Milliseconds(5);
    while (absl::Now() < asleep) std::this_thread::yield();
    const bool offered = size > kInlineBytes;
    const Message message{.kind = offered ? Message::Kind::kOffer : Message::Kind::kInline,
                          .tag = {1, 0, 1},
                          .length = size,
                          .bytes = sent.data(),
                          .address = reinterpret_cast<uint64_t>(sent.data()),
                          .offer = offer++};
    EXPECT_TRUE(*writer().Write(message));
    EXPECT_TRUE(*writer().Write({.tag = {1, 0, 2}}));
    EXPECT_TRUE(first_.mesh.Run({{Receive(1, empty, {1, 0, 2})}}, kPlenty).ok());
    sleeper.join();
    EXPECT_EQ(received, sent);
  }
}

TEST_F(BrokenPeerTest, AnOfferOfMemoryThatIsNotThere) {
  Bytes received(kSize);
  Say({.kind = Message::Kind::kOffer, .tag = kTag, .length = kSize, .address = 8});
  const absl::Status status = first_.mesh.Run({{Receive(1, received)}}, kPlenty);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost"));
  EXPECT_EQ(received, Bytes(kSize));
}

TEST_F(BrokenPeerTest, AnOfferOfAnotherSize) {
  Bytes received(kSize);
  Say({.kind = Message::Kind::kOffer, .tag = kTag, .length = kSize + 1, .address = 8});
  const absl::Status status = first_.mesh.Run({{Receive(1, received)}}, kPlenty);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr("100001"));
}

TEST_F(BrokenPeerTest, AnAnswerToWhatWasNotOffered) {
  writer().WriteAnswer(3);
  Bytes received(8);
  const absl::Status status = first_.mesh.Run({{Receive(1, received)}}, kPlenty);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("was not offered"));
}

TEST_F(BrokenPeerTest, ADamagedLaneEndsTheMesh) {
  std::thread waiting([&] {
    Bytes received(8);
    const absl::Status status = first_.mesh.Run({{Receive(1, received)}}, kPlenty);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 is damaged"));
  });
  to_first_->lane()->slots[0].sequence = 77;
  to_first_->doorbell().Ring();
  waiting.join();
}

TEST_F(BrokenPeerTest, MessagesThatNobodyWantsAreBounded) {
  const Bytes bytes(kInlineBytes);
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    Bytes received(8);
    const absl::Status status = first_.mesh.Run({{Receive(1, received, {7, 7, 7})}}, kPlenty);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ended = true;
  });
  int64_t sent = 0;
  while (!ended) {
    const Message message{.tag = kTag, .length = bytes.size(), .bytes = bytes.data()};
    if (writer().Write(message).value_or(false)) {
      ++sent;
      to_first_->doorbell().RingIfAwaited();
    } else {
      std::this_thread::yield();
    }
  }
  waiting.join();
  EXPECT_NEAR(static_cast<double>(sent * std::ssize(bytes)), static_cast<double>(kMostKeptBytes),
              0.02 * static_cast<double>(kMostKeptBytes));
}

}  // namespace
}  // namespace esteira
