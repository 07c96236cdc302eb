#include "worker/communication/transport.h"

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/meshes.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPlenty = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(20);
const Tag kTag{1, 2, 3};

class TransportTest : public ::testing::TestWithParam<MeshKind> {
 protected:
  void Open(int ranks) { mesh_ = GetParam().make(ranks); }
  Transport& At(int rank) { return *mesh_[static_cast<size_t>(rank)]; }
  absl::Status Run(int rank, const Transfer& transfer, absl::Duration timeout = kPlenty) {
    return At(rank).Run({{transfer}}, timeout);
  }

  Transports mesh_;
};

TEST_P(TransportTest, KnowsItsPlace) {
  Open(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(At(rank).rank(), rank);
    EXPECT_EQ(At(rank).size(), 3);
  }
}

TEST_P(TransportTest, AMeshOfOneHasNobodyToTalkTo) {
  Open(1);
  EXPECT_TRUE(At(0).Run({}, kPlenty).ok());
}

TEST_P(TransportTest, BytesArriveUnchanged) {
  for (const size_t bytes : {0u, 1u, 63u, 4097u, 65536u, 65537u, 3u << 20, 20u << 20}) {
    Open(2);
    std::vector<std::byte> sent = Pattern(bytes, 5);
    std::vector<std::byte> received(bytes + 64, std::byte{0xee});
    OnEveryRank(2, [&](int rank) {
      const Transfer transfer =
          rank == 0 ? Send(1, kTag, sent) : Receive(0, kTag, std::span(received).first(bytes));
      EXPECT_TRUE(Run(rank, transfer).ok());
    });
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), received.begin())) << bytes;
    for (size_t i = bytes; i < received.size(); ++i) ASSERT_EQ(received[i], std::byte{0xee});
  }
}

TEST_P(TransportTest, CountsWhatMoved) {
  Open(2);
  OnEveryRank(2, [&](int rank) {
    std::vector<std::byte> a(100), b(30);
    EXPECT_TRUE(Run(rank, rank == 0 ? Send(1, kTag, a) : Receive(0, kTag, a)).ok());
    EXPECT_TRUE(Run(rank, rank == 0 ? Send(1, kTag, b) : Receive(0, kTag, b)).ok());
    EXPECT_TRUE(Run(rank, rank == 1 ? Send(0, kTag, b) : Receive(1, kTag, b)).ok());
  });
  EXPECT_EQ(At(0).counters().bytes_sent, 130);
  EXPECT_EQ(At(0).counters().messages_sent, 2);
  EXPECT_EQ(At(0).counters().bytes_received, 30);
  EXPECT_EQ(At(1).counters().bytes_received, 130);
  EXPECT_EQ(At(1).counters().messages_dropped, 0);
}

// Two messages from each peer: whatever a transport calls for lies at the front of all of them.
TEST_P(TransportTest, SegmentsCoverAllMessagesInOrder) {
  constexpr int kRanks = 3;
  Open(kRanks);
  for (const size_t bytes : {0u, 8u, 65536u, 65544u, (1u << 20) + 8}) {
    OnEveryRank(kRanks, [&](int rank) {
      std::vector<std::vector<std::byte>> buffers, whole;
      std::vector<Transfer> transfers;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        for (int i = 0; i < 2; ++i) {
          transfers.push_back(Send(peer, kTag, buffers.emplace_back(Pattern(bytes, rank + i))));
          transfers.push_back(Receive(peer, kTag, buffers.emplace_back(bytes)));
          whole.emplace_back();
        }
      }
      const auto arrived = [&](size_t offset, size_t count) {
        for (size_t m = 0; m < whole.size(); ++m) {
          EXPECT_EQ(offset, whole[m].size());
          const auto front = transfers[2 * m + 1].bytes.first(count);
          whole[m].insert(whole[m].end(), front.begin(), front.end());
        }
      };
      const absl::Status status = At(rank).RunInSegments(transfers, kPlenty, arrived);
      EXPECT_TRUE(status.ok()) << status;
      for (size_t m = 0; m < whole.size(); ++m) {
        EXPECT_EQ(whole[m], Pattern(bytes, transfers[2 * m + 1].peer + static_cast<int>(m % 2)))
            << bytes << " bytes, message " << m;
      }
    });
  }
}

TEST_P(TransportTest, SegmentsOfAPeerThatGoesAwayFail) {
  Open(3);
  mesh_[2].reset();
  OnEveryRank(2, [&](int rank) {
    std::vector<std::byte> sent(1 << 20), from_peer(1 << 20), from_lost(1 << 20);
    const absl::Status status = At(rank).RunInSegments(
        {{Send(1 - rank, kTag, sent), Receive(1 - rank, kTag, from_peer),
          Receive(2, kTag, from_lost)}},
        kPlenty, [](size_t, size_t) { ADD_FAILURE() << "nothing has come from rank 2"; });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  });
}

// Small and large sizes alternate: a transport that moves them in different ways must keep their
// order.
TEST_P(TransportTest, EqualTagsArriveInTheOrderOfSending) {
  Open(2);
  constexpr int kMessages = 24;
  const auto bytes = [](int i) { return i % 3 == 0 ? size_t{300'000} : size_t{40}; };
  OnEveryRank(2, [&](int rank) {
    for (int i = 0; i < kMessages; ++i) {
      std::vector<std::byte> pattern = Pattern(bytes(i), i), received(bytes(i));
      if (rank == 0) {
        EXPECT_TRUE(Run(0, Send(1, kTag, pattern)).ok());
      } else {
        EXPECT_TRUE(Run(1, Receive(0, kTag, received)).ok());
        EXPECT_EQ(received, pattern) << i;
      }
    }
  });
}

// One group whose receives are posted in the opposite order of the sends.
TEST_P(TransportTest, TagsMatchInAnyOrder) {
  Open(2);
  constexpr int kMessages = 9;
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<Transfer> sends, receives;
  for (int i = 0; i < kMessages; ++i) {
    const size_t bytes = i % 2 == 0 ? 100 : 200'000;
    sent.push_back(Pattern(bytes, i));
    received.emplace_back(bytes);
  }
  for (uint32_t i = 0; i < kMessages; ++i) {
    sends.push_back(Send(1, {1, 0, i}, sent[i]));
    const uint32_t j = kMessages - 1 - i;
    receives.push_back(Receive(0, {1, 0, j}, received[j]));
  }
  OnEveryRank(
      2, [&](int rank) { EXPECT_TRUE(At(rank).Run(rank == 0 ? sends : receives, kPlenty).ok()); });
  EXPECT_EQ(sent, received);
}

// The first message waits unexpected at the receiver (where the transport sends without a posted
// receive).
TEST_P(TransportTest, AMessageMayComeBeforeItsReceive) {
  Open(2);
  for (const size_t bytes : {10u, 500'000u}) {
    std::vector<std::byte> first = Pattern(bytes, 1), second = Pattern(bytes, 2);
    std::vector<std::byte> got_first(bytes), got_second(bytes);
    OnEveryRank(2, [&](int rank) {
      if (rank == 0) {
        EXPECT_TRUE(
            At(0).Run({{Send(1, {7, 0, 0}, first), Send(1, {7, 0, 1}, second)}}, kPlenty).ok());
        return;
      }
      // Receiving the second one first proves that the first one has come already.
      std::vector<Transfer> order = {Receive(0, {7, 0, 1}, got_second),
                                     Receive(0, {7, 0, 0}, got_first)};
      if (bytes < 1000 && GetParam().sends_early) {
        for (const Transfer& transfer : order) EXPECT_TRUE(Run(1, transfer).ok());
      } else {
        EXPECT_TRUE(At(1).Run(order, kPlenty).ok());
      }
    });
    EXPECT_EQ(got_first, first);
    EXPECT_EQ(got_second, second);
  }
}

TEST_P(TransportTest, AGroupBothWaysDoesNotDeadlock) {
  for (const size_t bytes : {1u, 4u << 20}) {
    Open(3);
    OnEveryRank(3, [&](int rank) {
      std::vector<std::vector<std::byte>> buffers;
      std::vector<Transfer> group;
      for (int peer = 0; peer < 3; ++peer) buffers.push_back(Pattern(bytes, rank * 3 + peer));
      std::vector<std::vector<std::byte>> received(3, std::vector<std::byte>(bytes));
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        group.push_back(Send(peer, kTag, buffers[static_cast<size_t>(peer)]));
        group.push_back(Receive(peer, kTag, received[static_cast<size_t>(peer)]));
      }
      EXPECT_TRUE(At(rank).Run(group, kPlenty).ok());
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(received[static_cast<size_t>(peer)], Pattern(bytes, peer * 3 + rank));
      }
    });
  }
}

TEST_P(TransportTest, SeveralThreadsOfARankRunAtOnce) {
  Open(2);
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kMessages = 60;
  OnEveryRank(2, [&](int rank) {
    OnEveryRank(kThreads, [&](int thread) {
      const auto group = static_cast<uint32_t>(thread);
      for (uint32_t i = 0; i < kMessages; ++i) {
        const size_t bytes = (i * 7919u + group * 17u) % 100'000u;
        std::vector<std::byte> pattern = Pattern(bytes, thread), received(bytes);
        const bool sends = (rank == 0) == (group % 2 == 0);
        const Tag tag{1, group, i};
        const int peer = 1 - rank;
        EXPECT_TRUE(
            Run(rank, sends ? Send(peer, tag, pattern) : Receive(peer, tag, received)).ok());
        if (!sends) {
          EXPECT_EQ(received, pattern);
        }
      }
    });
  });
}

TEST_P(TransportTest, ATransferToOneselfOrToNobodyIsRefused) {
  std::vector<std::byte> bytes(4);
  for (int peer : {0, -1, 2}) {
    Open(2);
    const absl::Status status = Run(0, Send(peer, kTag, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(peer)));
  }
}

TEST_P(TransportTest, AReceiveWithoutASendTimesOut) {
  Open(2);
  std::vector<std::byte> bytes(4);
  const absl::Status status = Run(0, Receive(1, kTag, bytes), kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("receive of 4 bytes from rank 1, tag 1/2/3"));
  // The transport is aborted: for itself with the same cause, for the others as a lost peer.
  EXPECT_EQ(Run(0, Send(1, kTag, bytes)), status);
  const absl::Status other = Run(1, Receive(0, kTag, bytes));
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable) << other;
  EXPECT_THAT(other.message(), HasSubstr("rank 0"));
}

// Large enough to need the receiver's consent in every transport.
TEST_P(TransportTest, ALargeSendWithoutAReceiveTimesOutAndItsBufferIsFree) {
  Open(2);
  {
    std::vector<std::byte> bytes(8 << 20);
    const absl::Status status = Run(0, Send(1, kTag, bytes), kShort);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  std::vector<std::byte> bytes(8 << 20, std::byte{0x55});
  EXPECT_EQ(Run(1, Receive(0, kTag, bytes)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(bytes, std::vector<std::byte>(8 << 20, std::byte{0x55}));
}

TEST_P(TransportTest, AbortFromAnotherThreadWakesEveryone) {
  Open(3);
  std::vector<std::byte> bytes(4);
  std::atomic<int> started = 0;
  const absl::Status cause = absl::AbortedError("the epoch is over");
  OnEveryRank(4, [&](int thread) {
    std::vector<std::byte> own(4);
    if (thread == 3) {
      while (started < 3) std::this_thread::yield();
      At(0).Abort(cause);
      At(0).Abort(absl::InternalError("a later cause"));
      return;
    }
    ++started;
    const absl::Status status = Run(thread, Receive((thread + 1) % 3, kTag, own));
    if (thread == 0) {
      EXPECT_EQ(status, cause);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(status.message(), HasSubstr("rank 0"));
    }
  });
  EXPECT_EQ(Run(0, Send(1, kTag, bytes)), cause);
}

TEST_P(TransportTest, APeerThatGoesAwayIsNamed) {
  Open(3);
  mesh_[2].reset();
  OnEveryRank(2, [&](int rank) {
    std::vector<std::byte> bytes(4);
    const absl::Status status = Run(rank, Receive(2, kTag, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  });
}

TEST_P(TransportTest, APeerThatGoesAwayIsNoticedByWhoWaitsForIt) {
  Open(2);
  std::atomic<bool> waiting = false;
  OnEveryRank(2, [&](int rank) {
    if (rank == 1) {
      while (!waiting) std::this_thread::yield();
      mesh_[1].reset();
      return;
    }
    std::vector<std::byte> bytes(8);
    waiting = true;
    const absl::Status status = Run(0, Receive(1, kTag, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  });
}

// A rank that has finished may leave while others still work with each other.
TEST_P(TransportTest, APeerThatLeavesInOrderDoesNotDisturbTheOthers) {
  Open(3);
  OnEveryRank(3, [&](int rank) {
    std::vector<std::byte> bytes(100);
    if (rank == 2) {
      EXPECT_TRUE(Run(2, Send(0, kTag, bytes)).ok());
      mesh_[2].reset();
      return;
    }
    if (rank == 0) {
      EXPECT_TRUE(Run(0, Receive(2, kTag, bytes)).ok());
    }
    for (int i = 0; i < 50; ++i) {
      const absl::Status status =
          Run(rank, rank == 0 ? Send(1, kTag, bytes) : Receive(0, kTag, bytes));
      EXPECT_TRUE(status.ok()) << status;
    }
  });
}

TEST_P(TransportTest, SizesMustBeEqual) {
  for (const auto& [sent, posted] :
       {std::pair{8u, 4u}, {4u, 8u}, {0u, 1u}, {2u << 20, 1u << 20}, {1u << 20, 2u << 20}}) {
    Open(2);
    OnEveryRank(2, [&, sent = sent, posted = posted](int rank) {
      std::vector<std::byte> bytes(rank == 0 ? sent : posted, std::byte{0x11});
      const absl::Status status =
          Run(rank, rank == 0 ? Send(1, kTag, bytes) : Receive(0, kTag, bytes));
      const bool needs_consent = !GetParam().sends_early || sent > 100'000;
      if (rank == 0 && needs_consent) {
        EXPECT_FALSE(status.ok()) << "nobody took the bytes";
      }
      if (rank == 1) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        EXPECT_THAT(status.message(), HasSubstr("rank 0 sent " + std::to_string(sent)));
        EXPECT_EQ(bytes, std::vector<std::byte>(posted, std::byte{0x11})) << "was written to";
      }
    });
    std::vector<std::byte> bytes(1);
    EXPECT_FALSE(Run(0, Receive(1, kTag, bytes)).ok()) << "the sender must learn of it";
  }
}

INSTANTIATE_TEST_SUITE_P(, TransportTest, ::testing::ValuesIn(MeshKinds()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace esteira
