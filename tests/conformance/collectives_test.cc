#include "worker/communication/collectives.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/meshes.h"
#include "worker/communication/algorithms.h"
#include "worker/device/device.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing,
                                     Algorithm::kTree};

// Values whose sum depends on the order of the additions.
float Value(int rank, size_t index) {
  const auto x =
      static_cast<float>((index * 2654435761u + static_cast<size_t>(rank) * 97u) % 10007u);
  return std::ldexp(x - 5000.0F, rank % 3 * 9 - 7);
}

Floats Input(int rank, size_t elements) {
  Floats values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = Value(rank, i);
  return values;
}

// The sum that the README promises: piece j is ((x[j+1] + x[j+2]) + ...) + x[j], indexes round the
// circle.
Floats NaiveSum(const std::vector<int>& members, size_t piece) {
  const size_t n = members.size();
  Floats sums(piece * n);
  for (size_t i = 0; i < sums.size(); ++i) {
    const size_t owner = i / piece;
    float sum = Value(members[(owner + 1) % n], i);
    for (size_t k = 2; k <= n; ++k) sum += Value(members[(owner + k) % n], i);
    sums[i] = sum;
  }
  return sums;
}

void ExpectSameBits(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
  }
}

std::vector<int> AllRanks(int ranks) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

class CollectivesTest : public ::testing::TestWithParam<std::tuple<MeshKind, int>> {
 protected:
  // What one member of a group has: its collectives and a stream to run them on.
  struct Member {
    int rank;
    std::unique_ptr<Collectives> collectives;
    std::unique_ptr<Stream> stream;
    std::vector<std::byte> scratch;

    std::span<std::byte> Scratch(size_t elements) { return ScratchOf(elements * sizeof(float)); }
    std::span<std::byte> ScratchOf(size_t bytes) {
      scratch.resize(static_cast<size_t>(collectives->ScratchBytes(static_cast<int64_t>(bytes))));
      return scratch;
    }
  };

  static int ranks() { return std::get<1>(GetParam()); }
  static Transports MakeMesh(int size) { return std::get<0>(GetParam()).make(size); }

  void OnEveryMember(Transports& mesh, const std::vector<int>& members,
                     const CollectivesOptions& options, const std::function<void(Member&)>& body) {
    OnEveryRank(static_cast<int>(members.size()), [&](int position) {
      const int rank = members[static_cast<size_t>(position)];
      Member member{rank,
                    MakeCollectives(*mesh[static_cast<size_t>(rank)], members, options),
                    device_->NewStream("communication"),
                    {}};
      EXPECT_EQ(member.collectives->position(), position);
      EXPECT_EQ(member.collectives->size(), static_cast<int>(members.size()));
      body(member);
      const absl::Status status = member.stream->Synchronize();
      EXPECT_TRUE(status.ok()) << status;
    });
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice({});
};

TEST_P(CollectivesTest, AllGatherFillsEveryPiece) {
  Transports mesh = MakeMesh(ranks());
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      for (const size_t piece : {0u, 1u, 37u, 100'003u}) {
        std::vector<std::byte> expected;
        for (int rank = 0; rank < ranks(); ++rank) {
          const std::vector<std::byte> part = Pattern(piece, rank);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        std::vector<std::byte> buffer(expected.size());
        const std::vector<std::byte> own = Pattern(piece, member.rank);
        std::copy(own.begin(), own.end(),
                  buffer.begin() + static_cast<std::ptrdiff_t>(piece) * member.rank);
        member.collectives->AllGather(buffer, *member.stream);
        EXPECT_TRUE(member.stream->Synchronize().ok());
        EXPECT_EQ(buffer, expected) << "piece of " << piece;
      }
    });
  }
}

TEST_P(CollectivesTest, ReductionsHaveTheDocumentedBits) {
  Transports mesh = MakeMesh(ranks());
  const auto n = static_cast<size_t>(ranks());
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
      OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
        for (const size_t piece : {0u, 1u, 17u, 9'973u}) {
          const Floats expected = NaiveSum(AllRanks(ranks()), piece);
          const auto position = static_cast<size_t>(member.rank) * piece;
          Floats scattered = Input(member.rank, piece * n);
          Floats reduced = scattered;
          const std::span<std::byte> scratch = member.Scratch(piece * n);
          EXPECT_LE(scratch.size(), piece * n * sizeof(float));
          member.collectives->ReduceScatter(scattered, scratch, *member.stream);
          member.collectives->AllReduce(reduced, scratch, *member.stream);
          EXPECT_TRUE(member.stream->Synchronize().ok());
          ExpectSameBits(std::span(scattered).subspan(position, piece),
                         std::span(expected).subspan(position, piece));
          ExpectSameBits(reduced, expected);
        }
      });
    }
  }
}

TEST_P(CollectivesTest, BroadcastReachesEveryoneFromAnyRoot) {
  Transports mesh = MakeMesh(ranks());
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      for (int root = 0; root < ranks(); ++root) {
        for (const size_t bytes : {0u, 1u, 700'001u}) {
          const std::vector<std::byte> expected = Pattern(bytes, root);
          std::vector<std::byte> buffer(bytes);
          if (member.rank == root) buffer = expected;
          member.collectives->Broadcast(buffer, root, *member.stream);
          EXPECT_TRUE(member.stream->Synchronize().ok());
          EXPECT_EQ(buffer, expected) << "root " << root;
        }
      }
    });
  }
}

TEST_P(CollectivesTest, NobodyPassesABarrierBeforeTheLastHasCome) {
  Transports mesh = MakeMesh(ranks());
  std::atomic<int> arrived = 0;
  OnEveryMember(mesh, AllRanks(ranks()), {}, [&](Member& member) {
    for (int turn = 1; turn <= 20; ++turn) {
      member.stream->Enqueue([&arrived] {
        ++arrived;
        return absl::OkStatus();
      });
      member.collectives->Barrier(*member.stream);
      EXPECT_TRUE(member.stream->Synchronize().ok());
      EXPECT_GE(arrived, turn * ranks());
    }
  });
}

// A group that leaves the first rank out, so that positions are not ranks; beside it, all ranks in
// another group.
TEST_P(CollectivesTest, GroupsOfOneMeshDoNotMix) {
  const int total = ranks() + 1;
  Transports mesh = MakeMesh(total);
  std::vector<int> members = AllRanks(total);
  members.erase(members.begin());
  constexpr size_t kPiece = 1001;
  std::thread everyone([&] {
    const std::vector<int> all = AllRanks(total);
    OnEveryMember(mesh, all, {.group_id = 1}, [&](Member& member) {
      Floats values = Input(member.rank, kPiece * all.size());
      member.collectives->AllReduce(values, member.Scratch(values.size()), *member.stream);
      EXPECT_TRUE(member.stream->Synchronize().ok());
      ExpectSameBits(values, NaiveSum(all, kPiece));
    });
  });
  OnEveryMember(mesh, members, {.group_id = 2}, [&](Member& member) {
    Floats values = Input(member.rank, kPiece * members.size());
    member.collectives->AllReduce(values, member.Scratch(values.size()), *member.stream);
    EXPECT_TRUE(member.stream->Synchronize().ok());
    ExpectSameBits(values, NaiveSum(members, kPiece));
  });
  everyone.join();
}

// Close to the largest that a sum can hold, and of both signs: only the whole sum is small.
int64_t IntegerValue(int rank, size_t i, int ranks) {
  const auto random = static_cast<int64_t>(RandomBits(5, static_cast<uint64_t>(rank), i) >> 2);
  return (rank % 2 == 0 ? random : -random) / ranks;
}

TEST_P(CollectivesTest, SumsOfIntegersAreExactInEveryOrder) {
  Transports mesh = MakeMesh(ranks());
  const auto n = static_cast<size_t>(ranks());
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      for (const size_t piece : {0u, 1u, 17u, 9'973u}) {
        std::vector<int64_t> values(piece * n);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = IntegerValue(member.rank, i, ranks());
        }
        const std::span<std::byte> scratch = member.ScratchOf(values.size() * sizeof(int64_t));
        member.collectives->ReduceScatter(values, scratch, *member.stream);
        EXPECT_TRUE(member.stream->Synchronize().ok());
        for (size_t i = piece * static_cast<size_t>(member.rank);
             i < piece * static_cast<size_t>(member.rank + 1); ++i) {
          int64_t sum = 0;
          for (int rank = ranks(); rank-- > 0;) sum += IntegerValue(rank, i, ranks());
          ASSERT_EQ(values[i], sum) << "element " << i << " of pieces of " << piece;
        }
      }
    });
  }
}

// bf16 of both signs and of sizes whose sum depends on the order.
uint16_t Bf16Value(int rank, size_t i) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(Value(rank, i)) >> 16);
}

float Widened(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

TEST_P(CollectivesTest, SumsOfBf16AreFormedInFp32InTheOrderOfMembers) {
  Transports mesh = MakeMesh(ranks());
  const auto n = static_cast<size_t>(ranks());
  const std::vector<size_t> pieces = {17, 0, 1, 9'973, 64};
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      std::vector<std::vector<uint16_t>> contributions;
      std::vector<Floats> sums;
      size_t elements = 0;
      for (const size_t piece : pieces) {
        auto& contribution = contributions.emplace_back(piece * n);
        for (size_t i = 0; i < contribution.size(); ++i) {
          contribution[i] = Bf16Value(member.rank, i + piece);
        }
        sums.emplace_back(piece, 7.0F);
        elements += contribution.size();
      }
      const auto kept = contributions;
      std::vector<Bf16Reduction> reductions;
      for (size_t b = 0; b < pieces.size(); ++b) reductions.push_back({contributions[b], sums[b]});
      member.collectives->ReduceScatterBf16Each(
          reductions, member.ScratchOf(elements * sizeof(uint16_t)), *member.stream);
      EXPECT_TRUE(member.stream->Synchronize().ok());
      EXPECT_EQ(contributions, kept);
      for (size_t b = 0; b < pieces.size(); ++b) {
        Floats expected(pieces[b]);
        for (size_t i = 0; i < pieces[b]; ++i) {
          const size_t at = pieces[b] * static_cast<size_t>(member.rank) + i + pieces[b];
          float sum = Widened(Bf16Value(0, at));
          for (int rank = 1; rank < ranks(); ++rank) sum += Widened(Bf16Value(rank, at));
          expected[i] = sum;
        }
        ExpectSameBits(sums[b], expected);
      }
    });
  }
}

// Long enough to come in several segments, and to be measured.
TEST_P(CollectivesTest, LongReductionsHaveTheBitsOfShortOnes) {
  Transports mesh = MakeMesh(ranks());
  const auto n = static_cast<size_t>(ranks());
  constexpr size_t kPiece = 140'003;
  const Floats expected = NaiveSum(AllRanks(ranks()), kPiece);
  uint32_t group = 0;
  for (Algorithm algorithm : {Algorithm::kDirect, Algorithm::kAuto}) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      const size_t own = static_cast<size_t>(member.rank) * kPiece;
      Floats values = Input(member.rank, kPiece * n);
      std::vector<int64_t> integers(kPiece * n);
      std::vector<uint16_t> contribution(kPiece * n);
      for (size_t i = 0; i < values.size(); ++i) {
        integers[i] = IntegerValue(member.rank, i, ranks());
        contribution[i] = Bf16Value(member.rank, i);
      }
      Floats sums(kPiece);
      const auto scratch = member.ScratchOf(integers.size() * sizeof(int64_t));
      member.collectives->ReduceScatter(values, scratch, *member.stream);
      member.collectives->ReduceScatter(integers, scratch, *member.stream);
      member.collectives->ReduceScatterBf16Each({{contribution, sums}}, scratch, *member.stream);
      EXPECT_TRUE(member.stream->Synchronize().ok());
      ExpectSameBits(std::span(values).subspan(own, kPiece),
                     std::span(expected).subspan(own, kPiece));
      for (size_t i = 0; i < kPiece; ++i) {
        int64_t integer = 0;
        float sum = -0.0F;
        for (int rank = 0; rank < ranks(); ++rank) {
          integer += IntegerValue(rank, own + i, ranks());
          sum += Widened(Bf16Value(rank, own + i));
        }
        ASSERT_EQ(integers[own + i], integer) << i;
        ASSERT_EQ(sums[i], sum) << i;
      }
    });
  }
}

// What one operation on each of the buffers gives, to the bit.
TEST_P(CollectivesTest, SeveralBuffersInOneRoundAreEachAsAlone) {
  Transports mesh = MakeMesh(ranks());
  const auto n = static_cast<size_t>(ranks());
  const std::vector<size_t> pieces = {17, 0, 1, 9'973, 64};
  uint32_t group = 0;
  for (Algorithm algorithm : kAlgorithms) {
    const CollectivesOptions options{.group_id = group++, .algorithm = algorithm};
    OnEveryMember(mesh, AllRanks(ranks()), options, [&](Member& member) {
      for (size_t count = 1; count <= pieces.size(); ++count) {
        std::vector<Floats> alone, together;
        std::vector<std::vector<int64_t>> integers, integers_together;
        size_t elements = 0;
        for (size_t b = 0; b < count; ++b) {
          elements += pieces[b] * n;
          together.push_back(Input(member.rank, pieces[b] * n));
          for (float& value : together.back()) value *= static_cast<float>(b + 1);
          auto& values = integers_together.emplace_back(pieces[b] * n);
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = IntegerValue(member.rank, i + b, ranks());
          }
        }
        alone = together;
        integers = integers_together;
        const std::span<std::byte> scratch = member.ScratchOf(elements * sizeof(int64_t));
        Stream& stream = *member.stream;
        for (Floats& values : alone) member.collectives->ReduceScatter(values, scratch, stream);
        for (auto& values : integers) member.collectives->ReduceScatter(values, scratch, stream);
        member.collectives->ReduceScatterEach(
            std::vector<std::span<float>>(together.begin(), together.end()), scratch, stream);
        member.collectives->ReduceScatterEach(
            std::vector<std::span<int64_t>>(integers_together.begin(), integers_together.end()),
            scratch, stream);
        std::vector<std::span<std::byte>> bytes;
        for (Floats& values : alone) {
          member.collectives->AllGather(std::as_writable_bytes(std::span(values)), stream);
        }
        for (Floats& values : together) bytes.push_back(std::as_writable_bytes(std::span(values)));
        member.collectives->AllGatherEach(bytes, stream);
        EXPECT_TRUE(stream.Synchronize().ok());
        for (size_t b = 0; b < count; ++b) {
          ExpectSameBits(together[b], alone[b]);
          const auto own = [&](const std::vector<int64_t>& values) {
            return std::vector<int64_t>(
                values.begin() + static_cast<std::ptrdiff_t>(pieces[b]) * member.rank,
                values.begin() + static_cast<std::ptrdiff_t>(pieces[b]) * (member.rank + 1));
          };
          EXPECT_EQ(own(integers_together[b]), own(integers[b]));
        }
      }
    });
  }
}

TEST_P(CollectivesTest, AGroupOfOneIsLocal) {
  Transports mesh = MakeMesh(ranks());
  Floats values = Input(0, 10);
  const Floats expected = values;
  OnEveryMember(mesh, {0}, {}, [&](Member& member) {
    EXPECT_EQ(member.collectives->ScratchBytes(10), 0);
    member.collectives->AllReduce(values, {}, *member.stream);
    member.collectives->ReduceScatter(values, {}, *member.stream);
    std::vector<int64_t> integers = {1, -2};
    member.collectives->ReduceScatter(integers, {}, *member.stream);
    EXPECT_EQ(integers, (std::vector<int64_t>{1, -2}));
    member.collectives->AllGather(std::as_writable_bytes(std::span(values)), *member.stream);
    member.collectives->ReduceScatterEach({std::span(values), std::span(values)}, {},
                                          *member.stream);
    member.collectives->Broadcast(std::as_writable_bytes(std::span(values)), 0, *member.stream);
    member.collectives->Barrier(*member.stream);
  });
  EXPECT_EQ(values, expected);
  EXPECT_EQ(mesh[0]->counters().messages_sent, 0);
}

TEST_P(CollectivesTest, WrongArgumentsFailTheStream) {
  const int total = ranks() + 1;  // of one member, every size is one piece
  Transports mesh = MakeMesh(total);
  const auto n = static_cast<size_t>(total);
  const auto collectives = MakeCollectives(*mesh[0], AllRanks(total), {});
  Floats uneven(n + 1), even(n);
  const auto fails = [&](const std::function<void(Stream&)>& call, const std::string& words) {
    const auto stream = device_->NewStream("communication");
    call(*stream);
    const absl::Status status = stream->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  std::vector<std::byte> scratch(64);
  fails([&](Stream& s) { collectives->ReduceScatter(uneven, scratch, s); }, "equal pieces");
  fails([&](Stream& s) { collectives->AllReduce(even, {}, s); }, "scratch of 0 bytes");
  std::vector<int64_t> integers(n);
  const auto half = std::span(scratch).first((n - 1) * sizeof(float));
  fails([&](Stream& s) { collectives->ReduceScatter(integers, half, s); }, "are needed");
  fails(
      [&](Stream& s) {
        collectives->ReduceScatterEach({std::span(even), std::span(uneven)}, scratch, s);
      },
      "equal pieces");
  fails(
      [&](Stream& s) {
        collectives->AllGatherEach({std::as_writable_bytes(std::span(even)),
                                    std::as_writable_bytes(std::span(uneven)).first(n + 1)},
                                   s);
      },
      "equal pieces");
  // Enough for each of them, not for both.
  const auto one = std::span(scratch).first((n - 1) * sizeof(float));
  fails(
      [&](Stream& s) {
        collectives->ReduceScatterEach({std::span(even), std::span(even)}, one, s);
      },
      "are needed");
  fails([&](Stream& s) { collectives->Broadcast(scratch, total, s); }, "root");
  std::vector<uint16_t> contribution(2 * n);
  fails(
      [&](Stream& s) {
        collectives->ReduceScatterBf16Each({{contribution, uneven}}, scratch, s);
      },
      "sums for a piece of 2");
  const auto few = std::span(scratch).first((2 * n - 4) * sizeof(uint16_t));
  fails(
      [&](Stream& s) {
        collectives->ReduceScatterBf16Each({{contribution, std::span(even).first(2)}}, few, s);
      },
      "are needed");
}

TEST_P(CollectivesTest, AMissingMemberFailsTheStreamInTime) {
  const int total = ranks() + 1;
  Transports mesh = MakeMesh(total);
  const auto collectives =
      MakeCollectives(*mesh[0], AllRanks(total), {.timeout = absl::Milliseconds(20)});
  const auto stream = device_->NewStream("communication");
  collectives->Barrier(*stream);
  const absl::Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), HasSubstr("Barrier 0 of group 0"));
}

std::string Name(const ::testing::TestParamInfo<std::tuple<MeshKind, int>>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(, CollectivesTest,
                         ::testing::Combine(::testing::ValuesIn(MeshKinds()),
                                            ::testing::Values(1, 2, 3, 4, 5, 7)),
                         Name);

TEST_P(CollectivesTest, EveryMemberMeasuresTheSame) {
  Transports mesh = MakeMesh(ranks());
  const std::vector<int> members = AllRanks(ranks());
  std::vector<GatherCosts> costs(members.size());
  OnEveryRank(ranks(), [&](int rank) {
    Transport& transport = *mesh[static_cast<size_t>(rank)];
    const auto measured =
        MeasureGathers(Round(transport, members, rank, {kCollectiveTag, 0, 0}, absl::Minutes(1)));
    ASSERT_TRUE(measured.ok()) << measured.status();
    costs[static_cast<size_t>(rank)] = *measured;
  });
  for (const GatherCosts& other : costs) {
    EXPECT_EQ(other.direct.latency_seconds, costs[0].direct.latency_seconds);
    EXPECT_EQ(other.direct.seconds_per_byte, costs[0].direct.seconds_per_byte);
    EXPECT_EQ(other.ring.latency_seconds, costs[0].ring.latency_seconds);
    EXPECT_EQ(other.ring.seconds_per_byte, costs[0].ring.seconds_per_byte);
  }
}

TEST(ChooseAlgorithmTest, WhatIsMeasuredDecides) {
  const GatherCosts costs{.direct = {1e-5, 3e-9}, .ring = {4e-5, 1e-9}};
  EXPECT_TRUE(DirectIsSooner(costs, 1 << 10));
  EXPECT_FALSE(DirectIsSooner(costs, 1 << 20));
  EXPECT_TRUE(DirectIsSooner({costs.direct, {4e-5, 3e-9}}, 1 << 30));
  const TransferCost slower = Slower({1, 4}, {2, 3});
  EXPECT_EQ(slower.latency_seconds, 2);
  EXPECT_EQ(slower.seconds_per_byte, 4);
}

TEST(ChooseAlgorithmTest, ManyLatenciesAreOnlyPaidWhenTheyAreSmallBesideTheTransfer) {
  const LinkModel link{.latency_seconds = 1e-5, .bytes_per_second = 1e9};
  EXPECT_EQ(ChooseAlgorithm(link, 1 << 10, 8), Algorithm::kDirect);
  EXPECT_EQ(ChooseAlgorithm(link, 64 << 20, 8), Algorithm::kRing);
  EXPECT_EQ(ChooseAlgorithm(link, 64 << 20, 2), Algorithm::kDirect);
  EXPECT_EQ(ChooseBroadcastAlgorithm(link, 1 << 10, 16), Algorithm::kTree);
  EXPECT_EQ(ChooseBroadcastAlgorithm(link, 64 << 20, 16), Algorithm::kRing);
  EXPECT_EQ(ChooseBroadcastAlgorithm(link, 64 << 20, 2), Algorithm::kDirect);
}

}  // namespace
}  // namespace esteira
