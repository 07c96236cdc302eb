// Collectives over UCX between real processes: time of an operation, and what waiting costs. Prints
// a JSON object a line. Operations are timed in a row on their stream. Rank 0 times; every rank is
// a process of its own, forked before UCX begins.
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "worker/communication/collectives.h"
#include "worker/communication/ucx/ucx_transport.h"
#include "worker/device/device.h"

namespace esteira {
namespace {

constexpr int kMostRanks = 64;
constexpr size_t kMostAddressBytes = 4096;
constexpr int64_t kBytesATurn = int64_t{256} << 20;  // that one timing moves, about
constexpr int kMostIterations = 200;
constexpr int kTurns = 3;

// Lies in memory that all ranks share: how they find each other.
struct Board {
  struct Address {
    size_t size = 0;
    char bytes[kMostAddressBytes] = {};
  };
  std::atomic<int> arrived{0};
  Address addresses[kMostRanks];
};

struct Options {
  int ranks = 2;
  std::vector<int64_t> bytes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20};
  std::vector<std::string> operations{"all_reduce", "reduce_scatter", "all_gather"};
  Algorithm algorithm = Algorithm::kAuto;
  double wait_seconds = 0;
};

double Now() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

double ProcessorSeconds() {
  rusage use{};
  CHECK(getrusage(RUSAGE_SELF, &use) == 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

std::unique_ptr<Transport> Meet(Board& board, int rank, int ranks) {
  auto endpoint = OpenUcx({.job_id = "bench", .rank = rank, .size = ranks});
  CHECK(endpoint.ok());
  const std::string& own = (*endpoint)->address();
  CHECK(own.size() <= kMostAddressBytes);
  Board::Address& place = board.addresses[rank];
  std::memcpy(place.bytes, own.data(), own.size());
  place.size = own.size();
  board.arrived.fetch_add(1);
  while (board.arrived.load() < ranks) std::this_thread::yield();
  std::vector<std::string> addresses;
  addresses.reserve(static_cast<size_t>(ranks));
  for (int other = 0; other < ranks; ++other) {
    addresses.emplace_back(board.addresses[other].bytes, board.addresses[other].size);
  }
  const std::vector<std::string> versions(static_cast<size_t>(ranks), (*endpoint)->version());
  auto transport = (*endpoint)->Connect(addresses, versions);
  CHECK(transport.ok());
  return *std::move(transport);
}

// One rank: its end of the mesh, a buffer that is large enough, and a stream to work on.
class Rank {
 public:
  Rank(Board& board, int rank, const Options& options)
      : options_(options),
        transport_(Meet(board, rank, options.ranks)),
        device_(MakeCpuDevice({})),
        stream_(device_->NewStream("communication")) {
    std::vector<int> members(static_cast<size_t>(options.ranks));
    std::iota(members.begin(), members.end(), 0);
    collectives_ = MakeCollectives(*transport_, members, {.algorithm = options.algorithm});
    const int64_t most = *std::max_element(options.bytes.begin(), options.bytes.end());
    values_.assign(static_cast<size_t>(most) / sizeof(float), 1e-3F);
    scratch_.resize(static_cast<size_t>(collectives_->ScratchBytes(most)));
  }

  void Work() {
    Finish();
    absl::SleepFor(absl::Milliseconds(300));  // ranks are at work with themselves at first
    for (const std::string& operation : options_.operations) {
      for (const int64_t bytes : options_.bytes) Measure(operation, bytes);
    }
    if (options_.wait_seconds > 0) MeasureWait();
    Finish();
  }

 private:
  bool first() const { return transport_->rank() == 0; }

  void Finish() {
    collectives_->Barrier(*stream_);
    CHECK(stream_->Synchronize().ok());
  }

  void Start(const std::string& operation, std::span<float> values) {
    if (operation == "all_reduce") {
      collectives_->AllReduce(values, scratch_, *stream_);
    } else if (operation == "reduce_scatter") {
      collectives_->ReduceScatter(values, scratch_, *stream_);
    } else {
      collectives_->AllGather(std::as_writable_bytes(values), *stream_);
    }
  }

  void Measure(const std::string& operation, int64_t bytes) {
    const std::span values = std::span(values_).first(static_cast<size_t>(bytes) / sizeof(float));
    const int iterations =
        static_cast<int>(std::clamp<int64_t>(kBytesATurn / bytes, 2, kMostIterations));
    Start(operation, values);
    std::vector<double> seconds;
    for (int turn = 0; turn < kTurns; ++turn) {
      Finish();
      const double begin = Now();
      for (int i = 0; i < iterations; ++i) Start(operation, values);
      CHECK(stream_->Synchronize().ok());
      seconds.push_back((Now() - begin) / iterations);
    }
    std::sort(seconds.begin(), seconds.end());
    if (!first()) return;
    std::printf("{\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"seconds\": %.9f}\n",
                operation.c_str(), options_.ranks, static_cast<long long>(bytes),
                seconds[kTurns / 2]);
    std::fflush(stdout);
  }

  // Rank 0 waits for a message that the others hold back: what its threads burn meanwhile.
  void MeasureWait() {
    Finish();
    const double begin = Now();
    const double processor_begin = ProcessorSeconds();
    if (!first()) absl::SleepFor(absl::Seconds(options_.wait_seconds));
    Start("all_gather", std::span(values_).first(static_cast<size_t>(options_.ranks)));
    CHECK(stream_->Synchronize().ok());
    const double processor = ProcessorSeconds() - processor_begin;
    if (!first()) return;
    std::printf("{\"wait_seconds\": %.3f, \"processor_share\": %.5f}\n", Now() - begin,
                processor / (Now() - begin));
    std::fflush(stdout);
  }

  const Options& options_;
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<float> values_;
  std::vector<std::byte> scratch_;
};

// One to each rank, when there are enough: as mpirun does for few ranks.
void BindToProcessor(int rank, int ranks) {
  cpu_set_t all;
  CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
  if (ranks > CPU_COUNT(&all)) return;
  int processor = 0;
  for (int seen = -1; seen < rank; ++processor) seen += CPU_ISSET(processor, &all) ? 1 : 0;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(processor - 1, &own);
  CHECK(sched_setaffinity(0, sizeof(own), &own) == 0);
}

int RunRanks(const Options& options) {
  void* const shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  Board& board = *new (shared) Board();
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) continue;
    BindToProcessor(rank, options.ranks);
    Rank(board, rank, options).Work();
    std::_Exit(0);
  }
  int failures = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    int status = 0;
    CHECK(wait(&status) > 0);
    failures += status != 0 ? 1 : 0;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  esteira::Options options;
  CLI::App app("Collectives over UCX between real processes");
  app.add_option("--ranks", options.ranks, "Processes")
      ->check(CLI::Range(1, esteira::kMostRanks))
      ->capture_default_str();
  app.add_option("--bytes", options.bytes, "Sizes of the whole buffer; multiples of 4 * ranks")
      ->delimiter(',');
  app.add_option("--operations", options.operations, "Of all_reduce, reduce_scatter, all_gather")
      ->delimiter(',');
  const std::map<std::string, esteira::Algorithm> algorithms{
      {"auto", esteira::Algorithm::kAuto},
      {"direct", esteira::Algorithm::kDirect},
      {"ring", esteira::Algorithm::kRing}};
  app.add_option("--algorithm", options.algorithm, "auto, direct or ring")
      ->transform(CLI::CheckedTransformer(algorithms));
  app.add_option("--wait", options.wait_seconds, "Also: rank 0 waits for so many seconds");
  CLI11_PARSE(app, argc, argv);
  return esteira::RunRanks(options);
}
