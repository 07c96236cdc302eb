#include "tests/bench/machine_limits.h"

#include <time.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/status_macros.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/kernels/cpu/loops.h"

namespace esteira {
namespace {

constexpr double kShortest = 0.05;  // seconds that a measurement takes at least
constexpr int kFewestRuns = 3;

// The shortest run of each, taken in turns; each puts its work in the stream.
std::vector<double> Shortest(Stream& stream, const std::vector<std::function<void()>>& runs) {
  double now = 0;
  const auto take_time = [&] {
    stream.Enqueue([&] {
      now = ThreadSeconds();
      return absl::OkStatus();
    });
    CHECK(stream.Synchronize().ok());
    return now;
  };
  for (const auto& run : runs) run();
  std::vector<double> shortest(runs.size(), std::numeric_limits<double>::infinity());
  double total = 0;
  for (int round = 0; round < kFewestRuns || total < kShortest * static_cast<double>(runs.size());
       ++round) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const double begin = take_time();
      runs[i]();
      const double seconds = take_time() - begin;
      shortest[i] = std::min(shortest[i], seconds);
      total += seconds;
    }
  }
  return shortest;
}

struct Workbench {
  explicit Workbench(int threads)
      : device(MakeCpuDevice({.threads = threads})),
        kernels(MakeCpuKernels(threads)),
        stream(device->NewStream("limits")) {}

  Tensor Allocate(int64_t rows, int64_t columns, ElementType type) {
    Tensor x{nullptr, type, rows, columns};
    auto buffer = device->Allocate(x.bytes(), MemoryKind::kOther);
    CHECK(buffer.ok());
    x.data = buffer->data();
    buffers.push_back(*std::move(buffer));
    return x;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Stream> stream;
  std::vector<Buffer> buffers;
};

struct TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Operations of a second on this thread, the best of several runs.
double TilePeakOfThread() {
  constexpr int kRuns = 20;
  constexpr int kRounds = 20000;
  constexpr double kOperations = 4.0 * kRounds * 2 * 16 * 16 * 32;
  alignas(64) const TileConfiguration configuration;
  asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  double shortest = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const double begin = ThreadSeconds();
    for (int i = 0; i < kRounds; ++i) {
      asm volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
          "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    }
    shortest = std::min(shortest, ThreadSeconds() - begin);
  }
  asm volatile("tilerelease" ::: "memory");
  return kOperations / shortest;
}

// A product by oneDNN: C[m,n] = A[m,k] B[k,n], `tag` any: B in the layout of its choice.
std::function<void()> DnnlProduct(const ProductShape& s, bool packed, Workbench& bench) {
  using dnnl::memory;
  using Tag = memory::format_tag;
  const bool in_out = s.layout == WeightLayout::kInOut;
  const bool weight = s.pass == ProductPass::kWeightGradient;
  const int64_t m = !weight ? s.rows : in_out ? s.in : s.out;
  const int64_t n = s.pass == ProductPass::kForward ? s.out
                    : weight                        ? (in_out ? s.out : s.in)
                                                    : s.in;
  const int64_t k = weight ? s.rows : s.pass == ProductPass::kForward ? s.in : s.out;
  const bool b_transposed = !weight && (s.pass == ProductPass::kForward) != in_out;
  const auto bf16 = memory::data_type::bf16;
  const auto out = weight ? memory::data_type::f32 : bf16;
  const memory::desc a({m, k}, bf16, weight ? Tag::ba : Tag::ab);
  const memory::desc b({k, n}, bf16, packed ? Tag::any : b_transposed ? Tag::ba : Tag::ab);
  const memory::desc c({m, n}, out, Tag::ab);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a, b, c), engine);
  const Tensor left = bench.Allocate(m, k, ElementType::kBf16);
  const Tensor result = bench.Allocate(m, n, weight ? ElementType::kFp32 : ElementType::kBf16);
  const memory left_memory(described.src_desc(), engine, left.data);
  const memory right_memory(described.weights_desc(), engine);
  const memory result_memory(described.dst_desc(), engine, result.data);
  const dnnl::matmul product(described);
  return [=, &bench, queue = dnnl::stream(engine)] {
    bench.stream->Enqueue([=] {
      product.execute(queue, {{DNNL_ARG_SRC, left_memory},
                              {DNNL_ARG_WEIGHTS, right_memory},
                              {DNNL_ARG_DST, result_memory}});
      return absl::OkStatus();
    });
  };
}

std::function<void()> OurProduct(const ProductShape& s, Workbench& bench) {
  const bool in_out = s.layout == WeightLayout::kInOut;
  const Tensor x = bench.Allocate(s.rows, s.in, ElementType::kBf16);
  const Tensor y = bench.Allocate(s.rows, s.out, ElementType::kBf16);
  const ElementType type =
      s.pass == ProductPass::kWeightGradient ? ElementType::kFp32 : ElementType::kBf16;
  const Tensor w = in_out ? bench.Allocate(s.in, s.out, type) : bench.Allocate(s.out, s.in, type);
  return [=, &bench] {
    Kernels& kernels = *bench.kernels;
    switch (s.pass) {
      case ProductPass::kForward:
        kernels.LinearForward(x, w, {}, s.layout, y, *bench.stream);
        break;
      case ProductPass::kInputGradient:
        kernels.LinearBackwardInput(y, w, s.layout, x, *bench.stream);
        break;
      case ProductPass::kWeightGradient:
        kernels.LinearBackwardWeight(x, y, s.layout, GradientSum::kBegins, w, {}, *bench.stream);
        break;
    }
  };
}

}  // namespace

double ThreadSeconds() {
  timespec time{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double ProductTimes::best() const { return std::min({ours, row_major, packed}); }

double CopyBandwidth(int threads) {
  constexpr int64_t kElements = int64_t{64} << 20;
  Workbench bench(threads);
  const Tensor from = bench.Allocate(1, kElements, ElementType::kFp32);
  const Tensor to = bench.Allocate(1, kElements, ElementType::kFp32);
  const double seconds =
      Shortest(*bench.stream, {[&] { bench.kernels->Convert(from, to, *bench.stream); }}).front();
  return static_cast<double>(from.bytes() + to.bytes()) / seconds;
}

double TilePeak(int threads) {
  if (LoopsOfThisCpu().tiles == nullptr) return 0;
  std::vector<double> peaks(static_cast<size_t>(threads));
  std::vector<std::thread> members;
  for (double& peak : peaks) members.emplace_back([&peak] { peak = TilePeakOfThread(); });
  for (std::thread& member : members) member.join();
  double sum = 0;
  for (const double peak : peaks) sum += peak;
  return sum;
}

ProductTimes MeasureProduct(const ProductShape& shape, int threads) {
  Workbench bench(threads);
  const std::vector<double> seconds =
      Shortest(*bench.stream, {OurProduct(shape, bench), DnnlProduct(shape, false, bench),
                               DnnlProduct(shape, true, bench)});
  return {.ours = seconds[0], .row_major = seconds[1], .packed = seconds[2]};
}

}  // namespace esteira
