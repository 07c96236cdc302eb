// Latency and bandwidth of the transports, and of an all-reduce over them. Ranks are threads of
// this process; UCX goes through the loopback device.
#include <benchmark/benchmark.h>

#include <thread>
#include <vector>

#include "common/base/status_macros.h"
#include "tests/conformance/meshes.h"
#include "worker/communication/collectives.h"
#include "worker/device/device.h"

namespace esteira {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);

// A message to rank 1 and one of the same size back; the time is of both.
void BM_PingPong(benchmark::State& state, const MeshKind& kind) {
  const auto bytes = static_cast<size_t>(state.range(0));
  Transports mesh = kind.make(2);
  std::vector<std::byte> ping(bytes), pong(bytes);
  std::thread echo([&] {
    while (mesh[1]->Run({{Receive(0, {1, 0, 0}, pong)}}, kTimeout).ok() &&
           mesh[1]->Run({{Send(0, {1, 0, 0}, pong)}}, kTimeout).ok()) {
    }
  });
  for (auto _ : state) {
    CHECK(mesh[0]->Run({{Send(1, {1, 0, 0}, ping)}}, kTimeout).ok());
    CHECK(mesh[0]->Run({{Receive(1, {1, 0, 0}, ping)}}, kTimeout).ok());
  }
  mesh[1]->Abort(absl::CancelledError("the benchmark has ended"));
  echo.join();
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}

struct Member {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<Stream> stream;
  std::vector<float> values;
  std::vector<std::byte> scratch;
};

std::vector<Member> MakeMembers(Transports& mesh, Device& device, Algorithm algorithm,
                                size_t elements) {
  const int ranks = static_cast<int>(mesh.size());
  std::vector<Member> members;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int> group;
    for (int other = 0; other < ranks; ++other) group.push_back(other);
    Member member{
        MakeCollectives(*mesh[static_cast<size_t>(rank)], group, {.algorithm = algorithm}),
        device.NewStream("communication"),
        std::vector<float>(elements),
        {}};
    member.scratch.resize(static_cast<size_t>(
        member.collectives->ScratchBytes(static_cast<int64_t>(elements * sizeof(float)))));
    members.push_back(std::move(member));
  }
  return members;
}

// Every rank enqueues the same number of operations; rank 0's are timed.
void BM_AllReduce(benchmark::State& state, const MeshKind& kind, Algorithm algorithm) {
  const auto elements = static_cast<size_t>(state.range(1)) / sizeof(float);
  Transports mesh = kind.make(static_cast<int>(state.range(0)));
  const std::unique_ptr<Device> device = MakeCpuDevice({});
  std::vector<Member> members = MakeMembers(mesh, *device, algorithm, elements);
  for (auto _ : state) {
    for (Member& member : members) {
      member.collectives->AllReduce(member.values, member.scratch, *member.stream);
    }
    for (Member& member : members) CHECK(member.stream->Synchronize().ok());
  }
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

// Reduce-scatters of many small buffers, one after the other or in one round of messages.
void BM_SmallBuffers(benchmark::State& state, const MeshKind& kind, bool together) {
  const auto count = static_cast<size_t>(state.range(0));
  const auto elements = static_cast<size_t>(state.range(1)) / sizeof(float);
  Transports mesh = kind.make(4);
  const std::unique_ptr<Device> device = MakeCpuDevice({});
  std::vector<Member> members = MakeMembers(mesh, *device, Algorithm::kAuto, count * elements);
  for (auto _ : state) {
    for (Member& member : members) {
      std::vector<std::span<float>> buffers;
      for (size_t b = 0; b < count; ++b) {
        buffers.push_back(std::span(member.values).subspan(b * elements, elements));
      }
      if (together) {
        member.collectives->ReduceScatterEach(buffers, member.scratch, *member.stream);
      } else {
        for (std::span<float> buffer : buffers) {
          member.collectives->ReduceScatter(buffer, member.scratch, *member.stream);
        }
      }
    }
    for (Member& member : members) CHECK(member.stream->Synchronize().ok());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * state.range(1));
}

void RegisterAll() {
  for (const MeshKind& kind : MeshKinds()) {
    const std::string name = kind.name;
    benchmark::RegisterBenchmark(("PingPong/" + name).c_str(), BM_PingPong, kind)
        ->RangeMultiplier(16)
        ->Range(4 << 10, 64 << 20)
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
    for (const auto& [algorithm, label] :
         {std::pair{Algorithm::kDirect, "direct"}, std::pair{Algorithm::kRing, "ring"}}) {
      benchmark::RegisterBenchmark(("AllReduce/" + name + "/" + label).c_str(), BM_AllReduce, kind,
                                   algorithm)
          ->ArgsProduct({{2, 4}, {64 << 10, 16 << 20}})
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    }
    for (const bool together : {false, true}) {
      benchmark::RegisterBenchmark(
          ("SmallBuffers/" + name + (together ? "/together" : "/one by one")).c_str(),
          BM_SmallBuffers, kind, together)
          ->ArgsProduct({{32}, {1 << 10, 16 << 10}})
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  esteira::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
