// Every operation over NCCL gives the bytes that the collectives of host memory give: on the fake,
// which adds up in orders of its own, and on GPUs where there are enough.
#include "worker/communication/nccl/nccl_collectives.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <tuple>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/communication/nccl/fake_nccl.h"
#include "tests/worker/communication/nccl/gpus.h"
#include "worker/communication/inproc/inproc_transport.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/reference/operations.h"
#include "worker/tensor/tensor.h"

namespace esteira {
namespace {

using Bytes = std::vector<std::byte>;
using Buffers = std::vector<Bytes>;  // of one rank
using Spans = std::vector<std::span<std::byte>>;
using Script = std::function<void(Collectives& collectives, const Spans& buffers,
                                  std::span<std::byte> scratch, Stream& stream)>;

constexpr size_t kPieces[] = {0, 1, 17, 1009};

template <typename Element>
std::span<Element> As(std::span<std::byte> bytes) {
  return {reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(Element)};
}

template <typename Element>
Bytes BytesOfValues(const std::vector<Element>& values) {
  Bytes bytes(values.size() * sizeof(Element));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Values whose sum depends on the order of the additions.
std::vector<float> Floats(int rank, size_t count, uint64_t salt = 0) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto random = static_cast<int>(RandomBits(salt, static_cast<uint64_t>(rank), i) % 20001);
    values[i] = std::ldexp(static_cast<float>(random - 10000), rank % 3 * 7 - 20);
  }
  return values;
}

Bytes Bf16(int rank, size_t count, uint64_t salt) {
  std::vector<uint16_t> values(count);
  const std::vector<float> wide = Floats(rank, count, salt);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(wide[i]) >> 16);
  }
  return BytesOfValues(values);
}

// The gradient sums of one rank in exact numerics: contributions of three micro-batches.
std::vector<int64_t> FixedPoint(int rank, size_t count) {
  std::vector<int64_t> sums(count);
  const auto n = static_cast<int64_t>(count);
  for (uint64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
    std::vector<float> gradient = Floats(rank, count, micro_batch);
    const Tensor x{reinterpret_cast<std::byte*>(gradient.data()), ElementType::kFp32, 1, n};
    const Tensor sum{reinterpret_cast<std::byte*>(sums.data()), ElementType::kInt64, 1, n};
    EXPECT_FALSE(reference::AddFixedPoint(x, kLargestFixedPoint, sum));
  }
  return sums;
}

void OnEveryRank(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// Where the operations run: library, additions, and a copy between host and GPU.
struct Machine {
  std::shared_ptr<const nccl::Library> library;
  AddPieces additions;
  std::function<void(void*, const void*, size_t)> copy;
};

// Memory of a GPU that begins as a copy of `bytes`.
class OnGpu {
 public:
  OnGpu(const Machine& machine, const Bytes& bytes) : machine_(machine), bytes_(bytes.size()) {
    EXPECT_EQ(machine_.library->allocate(&data_, bytes.size() + 1), nccl::kCudaSuccess);
    machine_.copy(data_, bytes.data(), bytes.size());
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { machine_.library->free(data_); }

  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }
  Bytes Fetch() const {
    Bytes bytes(bytes_);
    machine_.copy(bytes.data(), data_, bytes_);
    return bytes;
  }

 private:
  const Machine& machine_;
  const size_t bytes_;
  void* data_ = nullptr;
};

size_t ScratchBytes(const Collectives& collectives, const Buffers& buffers) {
  size_t bytes = 0;
  for (const Bytes& buffer : buffers) bytes += buffer.size();
  return static_cast<size_t>(collectives.ScratchBytes(static_cast<int64_t>(bytes)));
}

class NcclCollectivesTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (OnFake()) {
      UseFake(/*seed=*/1);
      return;
    }
    const std::string why_not = gpus_.WhyNot(ranks());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    machine_ = {gpus_.library(), gpus_.Additions(),
                [this](void* to, const void* from, size_t n) { gpus_.Copy(to, from, n); }};
  }

  static bool OnFake() { return std::get<0>(GetParam()) == std::string("fake"); }
  static int ranks() { return std::get<1>(GetParam()); }
  static size_t n() { return static_cast<size_t>(ranks()); }

  void UseFake(uint64_t seed) {
    fake_ = std::make_unique<FakeNccl>(FakeNcclOptions{.seed = seed});
    machine_ = {fake_->library(), fake_->Additions(), [](void* to, const void* from, size_t bytes) {
                  if (bytes > 0) std::memcpy(to, from, bytes);
                }};
  }

  NcclGroup Group(int rank, const std::string& id) {
    return {.unique_id = id, .position = rank, .size = ranks(), .device = rank};
  }

  std::vector<Buffers> OverNccl(std::vector<Buffers> buffers, const Script& script) {
    const auto id = NewNcclId(*machine_.library);
    EXPECT_TRUE(id.ok()) << id.status();
    OnEveryRank(ranks(), [&](int rank) {
      const auto collectives =
          OpenNccl(machine_.library, Group(rank, *id), /*group_id=*/7, machine_.additions);
      ASSERT_TRUE(collectives.ok()) << collectives.status();
      EXPECT_EQ((*collectives)->position(), rank);
      EXPECT_EQ((*collectives)->size(), ranks());
      Buffers& own = buffers[static_cast<size_t>(rank)];
      std::vector<std::unique_ptr<OnGpu>> on_gpu;
      Spans spans;
      for (const Bytes& bytes : own) {
        spans.push_back(on_gpu.emplace_back(std::make_unique<OnGpu>(machine_, bytes))->span());
      }
      const OnGpu scratch(machine_, Bytes(ScratchBytes(**collectives, own)));
      const auto stream = device_->NewStream("communication");
      script(**collectives, spans, scratch.span(), *stream);
      const absl::Status status = stream->Synchronize();
      EXPECT_TRUE(status.ok()) << status;
      for (size_t b = 0; b < own.size(); ++b) own[b] = on_gpu[b]->Fetch();
    });
    if (OnFake()) {
      EXPECT_EQ(fake_->alive(), 0);
      EXPECT_EQ(fake_->aborts(), 0);
    }
    return buffers;
  }

  std::vector<Buffers> OnHost(std::vector<Buffers> buffers, const Script& script) {
    const auto transports = MakeInprocTransports(ranks());
    std::vector<int> members(n());
    std::iota(members.begin(), members.end(), 0);
    OnEveryRank(ranks(), [&](int rank) {
      const auto collectives = MakeCollectives(*transports[static_cast<size_t>(rank)], members, {});
      Buffers& own = buffers[static_cast<size_t>(rank)];
      Bytes scratch(ScratchBytes(*collectives, own));
      const auto stream = device_->NewStream("communication");
      script(*collectives, Spans(own.begin(), own.end()), scratch, *stream);
      EXPECT_TRUE(stream->Synchronize().ok());
    });
    return buffers;
  }

  template <typename MakeBuffers>
  std::vector<Buffers> Inputs(const MakeBuffers& make) {
    std::vector<Buffers> inputs;
    inputs.reserve(n());
    for (int rank = 0; rank < ranks(); ++rank) inputs.push_back(make(rank));
    return inputs;
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice({});
  Gpus gpus_;
  std::unique_ptr<FakeNccl> fake_;
  Machine machine_;
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<const char*, int>>& parameters) {
  return std::string(std::get<0>(parameters.param)) + "_" +
         std::to_string(std::get<1>(parameters.param));
}

INSTANTIATE_TEST_SUITE_P(Fake, NcclCollectivesTest,
                         ::testing::Combine(::testing::Values("fake"),
                                            ::testing::Values(1, 2, 3, 5)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Gpus, NcclCollectivesTest,
                         ::testing::Combine(::testing::Values("gpu"),
                                            ::testing::Values(1, 2, 3, 4)),
                         NameOf);

// Exact numerics: reduced and gathered as REDUCE of ZeRO 0 does, alone and several at once.
TEST_P(NcclCollectivesTest, SumsInFixedPointHaveTheBitsOfTheHostWhateverTheirOrder) {
  const Script script = [](Collectives& collectives, const Spans& buffers,
                           std::span<std::byte> scratch, Stream& stream) {
    collectives.ReduceScatter(As<int64_t>(buffers[0]), scratch, stream);
    collectives.AllGather(buffers[0], stream);
    collectives.ReduceScatterEach(std::vector{As<int64_t>(buffers[1]), As<int64_t>(buffers[2])},
                                  scratch, stream);
    collectives.AllGatherEach({buffers[1], buffers[2]}, stream);
  };
  for (const size_t piece : kPieces) {
    const auto inputs = Inputs([&](int rank) {
      return Buffers{BytesOfValues(FixedPoint(rank, piece * n())),
                     BytesOfValues(FixedPoint(rank, 3 * n())),
                     BytesOfValues(FixedPoint(rank, piece * n()))};
    });
    std::vector<int64_t> sums(piece * n());
    for (int rank = 0; rank < ranks(); ++rank) {
      const std::vector<int64_t> own = FixedPoint(rank, sums.size());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
    }
    const auto expected = OnHost(inputs, script);
    EXPECT_EQ(expected[0][0], BytesOfValues(sums));
    for (uint64_t seed = 1; seed <= (OnFake() ? 5 : 1); ++seed) {
      if (OnFake()) UseFake(seed);
      EXPECT_EQ(OverNccl(inputs, script), expected) << "pieces of " << piece << ", order " << seed;
    }
  }
}

TEST_P(NcclCollectivesTest, SumsOfFp32HaveTheOrderOfTheHost) {
  const Script script = [](Collectives& collectives, const Spans& buffers,
                           std::span<std::byte> scratch, Stream& stream) {
    collectives.ReduceScatter(As<float>(buffers[0]), scratch, stream);
    collectives.AllGather(buffers[0], stream);
    collectives.AllReduce(As<float>(buffers[1]), scratch, stream);
    collectives.ReduceScatterEach(std::vector{As<float>(buffers[2]), As<float>(buffers[3])},
                                  scratch, stream);
    collectives.AllGatherEach({buffers[2], buffers[3]}, stream);
  };
  for (const size_t piece : kPieces) {
    const auto inputs = Inputs([&](int rank) {
      return Buffers{
          BytesOfValues(Floats(rank, piece * n())), BytesOfValues(Floats(rank, piece * n(), 1)),
          BytesOfValues(Floats(rank, 5 * n(), 2)), BytesOfValues(Floats(rank, piece * n(), 3))};
    });
    EXPECT_EQ(OverNccl(inputs, script), OnHost(inputs, script)) << "pieces of " << piece;
  }
}

TEST_P(NcclCollectivesTest, SumsOfBf16HaveTheOrderOfTheHost) {
  const Script script = [](Collectives& collectives, const Spans& buffers,
                           std::span<std::byte> scratch, Stream& stream) {
    collectives.ReduceScatterBf16Each({{As<uint16_t>(buffers[0]), As<float>(buffers[1])}}, scratch,
                                      stream);
    collectives.ReduceScatterBf16Each({{As<uint16_t>(buffers[2]), As<float>(buffers[3])},
                                       {As<uint16_t>(buffers[4]), As<float>(buffers[5])}},
                                      scratch, stream);
  };
  for (const size_t piece : kPieces) {
    const auto inputs = Inputs([&](int rank) {
      return Buffers{Bf16(rank, piece * n(), 4), Bytes(piece * sizeof(float)),
                     Bf16(rank, 7 * n(), 5),     Bytes(7 * sizeof(float)),
                     Bf16(rank, piece * n(), 6), Bytes(piece * sizeof(float))};
    });
    EXPECT_EQ(OverNccl(inputs, script), OnHost(inputs, script)) << "pieces of " << piece;
  }
}

TEST_P(NcclCollectivesTest, BytesReachEveryoneFromAnyRoot) {
  const Script script = [](Collectives& collectives, const Spans& buffers, std::span<std::byte>,
                           Stream& stream) {
    for (int root = 0; root < collectives.size(); ++root) {
      collectives.Broadcast(buffers[static_cast<size_t>(root)], root, stream);
    }
    collectives.AllGather(buffers.back(), stream);
  };
  for (const size_t piece : kPieces) {
    const auto inputs = Inputs([&](int rank) {
      Buffers buffers;
      for (size_t root = 0; root <= n(); ++root) {
        buffers.push_back(BytesOfValues(Floats(rank, piece * n(), root)));
      }
      return buffers;
    });
    EXPECT_EQ(OverNccl(inputs, script), OnHost(inputs, script)) << "pieces of " << piece;
  }
}

TEST_P(NcclCollectivesTest, NobodyPassesABarrierBeforeTheLastHasCome) {
  std::atomic<int> arrived = 0;
  OverNccl(Inputs([](int) { return Buffers{}; }),
           [&](Collectives& collectives, const Spans&, std::span<std::byte>, Stream& stream) {
             for (int turn = 1; turn <= 20; ++turn) {
               stream.Enqueue([&arrived] {
                 ++arrived;
                 return absl::OkStatus();
               });
               collectives.Barrier(stream);
               EXPECT_TRUE(stream.Synchronize().ok());
               EXPECT_GE(arrived, turn * collectives.size());
             }
           });
}

// That the tests above can fail, and that neither fp32 nor bf16 may be left to NCCL: sums of fp32
// that the fake forms in two orders differ. (Two numbers have one sum.)
class NcclsOwnOrderTest : public NcclCollectivesTest {
 protected:
  // The first rank's piece.
  Bytes SumsOfFp32(uint64_t seed) {
    UseFake(seed);
    constexpr size_t kPiece = 1009;
    const auto id = NewNcclId(*machine_.library);
    Bytes first;
    OnEveryRank(ranks(), [&](int rank) {
      const auto communicator = NcclCommunicator::Open(machine_.library, Group(rank, *id));
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      const Bytes contribution = BytesOfValues(Floats(rank, kPiece * n()));
      Bytes sums(kPiece * sizeof(float));
      const absl::Status status = (*communicator)->Run([&](auto comm, auto stream) {
        return (*communicator)
            ->Check(machine_.library->reduce_scatter(contribution.data(), sums.data(), kPiece,
                                                     kNcclFloat32, nccl::kSum, comm, stream),
                    "ncclReduceScatter");
      });
      EXPECT_TRUE(status.ok()) << status;
      if (rank == 0) first = sums;
    });
    return first;
  }
};

INSTANTIATE_TEST_SUITE_P(Fake, NcclsOwnOrderTest,
                         ::testing::Combine(::testing::Values("fake"), ::testing::Values(3, 5)),
                         NameOf);

TEST_P(NcclsOwnOrderTest, ChangesSumsOfFp32) {
  EXPECT_EQ(SumsOfFp32(1), SumsOfFp32(1));
  EXPECT_NE(SumsOfFp32(1), SumsOfFp32(2));
}

}  // namespace
}  // namespace esteira
