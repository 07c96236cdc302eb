// What exact numerics cost: step time and memory of a small GPT-2, fast against exact, and the
// error of their sums against fp32 and float64; and the error of gradients that travel as bf16.
// Prints tables. Steps of both are taken in turns, and the shortest counts; processor time is that
// of all threads, and hardly moves when others use the machine too.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "tests/worker/engine/local_cluster.h"

namespace esteira {
namespace {

double ProcessorSeconds() {
  timespec time{};
  CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

JobSpec SmallGpt(int64_t micro_batch_size, int replicas, int zero) {
  JobSpec job = ToyJob(Architecture::kGpt2);
  job.model.num_layers = 4;
  job.model.hidden_size = 256;
  job.model.num_heads = job.model.num_kv_heads = 4;
  job.model.intermediate_size = 1024;
  job.model.vocab_size = 8192;
  job.model.max_sequence_length = job.sequence_length = 256;
  job.global_batch_size = 2 * micro_batch_size;
  job.layout.micro_batch_size = micro_batch_size;
  job.layout.replicas = replicas;
  job.layout.zero = zero;
  return job;
}

struct Run {
  JobSpec job;
  std::unique_ptr<LocalCluster> cluster;
  double wall = std::numeric_limits<double>::infinity();
  double processor = std::numeric_limits<double>::infinity();
  int64_t next_step = 1;

  void Step() {
    const absl::Time begin = absl::Now();
    const double processor_begin = ProcessorSeconds();
    CHECK(cluster->Step(next_step++, ToySamples(job)).ok());
    processor = std::min(processor, ProcessorSeconds() - processor_begin);
    wall = std::min(wall, absl::ToDoubleSeconds(absl::Now() - begin));
  }
};

Run MakeRun(JobSpec job, Numerics numerics) {
  job.numerics = numerics;
  auto cluster = LocalCluster::Make(job, {});
  CHECK(cluster.ok());
  return {.job = job, .cluster = *std::move(cluster)};
}

void PrintCost(const char* name, const JobSpec& job) {
  constexpr int kRounds = 6;
  Run runs[] = {MakeRun(job, Numerics::kFast), MakeRun(job, Numerics::kExact)};
  for (int round = 0; round < kRounds; ++round) {
    for (Run& run : runs) run.Step();
  }
  for (const Run& run : runs) {
    const MemoryUse& use = run.cluster->plan().prediction.memory.front();
    std::printf("%-22s %-6s %8.1f %8.1f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name,
                NumericsName(run.job.numerics), 1e3 * run.wall, 1e3 * run.processor,
                1e-6 * static_cast<double>(use.total()), 1e-6 * static_cast<double>(use.gradients),
                1e-6 * static_cast<double>(use.slots), 1e-6 * static_cast<double>(use.workspace),
                1e-6 * static_cast<double>(use.optimizer + use.parameters));
  }
  std::printf("%-22s exact / fast: %.3f of wall time, %.3f of processor time, %.3f of memory\n",
              name, runs[1].wall / runs[0].wall, runs[1].processor / runs[0].processor,
              static_cast<double>(runs[1].cluster->plan().prediction.memory.front().total()) /
                  static_cast<double>(runs[0].cluster->plan().prediction.memory.front().total()));
}

// Sums of `contributions` normal values times `scale`: their error over the sums of long double,
// relative to the root mean square of the sums.
void PrintErrors(double scale, int contributions) {
  constexpr int64_t kElements = 20000;
  const double unit = std::ldexp(1.0, -kFixedPointBits);
  double fp32_error = 0, fixed_error = 0, float64_error = 0, squares = 0;
  for (int64_t element = 0; element < kElements; ++element) {
    float fp32 = 0;
    double float64 = 0;
    int64_t fixed = 0;
    long double exact = 0;
    for (int i = 0; i < contributions; ++i) {
      const auto value = static_cast<float>(
          scale * RandomNormal(3, static_cast<uint64_t>(i), static_cast<uint64_t>(element)));
      fp32 += value;
      float64 += static_cast<double>(value);
      fixed += std::llrint(static_cast<double>(value) / unit);
      exact += static_cast<long double>(value);
    }
    const auto square = [exact](double sum) {
      const auto error = static_cast<double>(static_cast<long double>(sum) - exact);
      return error * error;
    };
    fp32_error += square(static_cast<double>(fp32));
    fixed_error += square(static_cast<double>(static_cast<float>(fixed)) * unit);
    float64_error += square(static_cast<double>(static_cast<float>(float64)));
    squares += static_cast<double>(exact * exact);
  }
  std::printf("%-10.0e %6d %12.1e %12.1e %12.1e\n", scale, contributions,
              std::sqrt(fp32_error / squares), std::sqrt(fixed_error / squares),
              std::sqrt(float64_error / squares));
}

float RoundedToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// Sums over replicas of gradients that travel as bf16 and as fp32: their error over the sums of
// double, relative to the sums of magnitudes.
void PrintTrafficErrors(int replicas) {
  constexpr int64_t kElements = 20000;
  double bf16_squares = 0, fp32_squares = 0, largest = 0;
  for (int64_t element = 0; element < kElements; ++element) {
    float bf16 = 0, fp32 = 0;
    double sum = 0, magnitudes = 0;
    for (int i = 0; i < replicas; ++i) {
      const auto value = static_cast<float>(
          RandomNormal(5, static_cast<uint64_t>(i), static_cast<uint64_t>(element)));
      bf16 += RoundedToBf16(value);
      fp32 += value;
      sum += static_cast<double>(value);
      magnitudes += std::abs(static_cast<double>(value));
    }
    const double error = (static_cast<double>(bf16) - sum) / magnitudes;
    bf16_squares += error * error;
    largest = std::max(largest, std::abs(error));
    fp32_squares += std::pow((static_cast<double>(fp32) - sum) / magnitudes, 2);
  }
  std::printf("%8d %12.1e %12.1e %12.1e\n", replicas, std::sqrt(bf16_squares / kElements), largest,
              std::sqrt(fp32_squares / kElements));
}

void Main() {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::printf(
      "A GPT-2 of 4 layers of 256, 8192 tokens, 256 positions; micro-batches x tokens; ms, MB\n");
  std::printf("%-22s %-6s %8s %8s %9s %9s %9s %9s %9s\n", "layout", "", "wall", "cpu", "memory",
              "sums", "slots", "workspace", "states");
  PrintCost("2 x 512, 1 rank", SmallGpt(2, 1, 0));
  PrintCost("2 x 2048, 1 rank", SmallGpt(8, 1, 0));
  PrintCost("2 x 512, 2 x ZeRO 0", SmallGpt(2, 2, 0));
  PrintCost("2 x 512, 2 x ZeRO 2", SmallGpt(2, 2, 2));
  std::printf("\nRelative error (root mean square) of a sum, as fp32 at its end\n");
  std::printf("%-10s %6s %12s %12s %12s\n", "size", "terms", "fp32", "fixed point", "float64");
  for (const double scale : {1e-9, 1e-6, 1e-3, 1.0, 1e3}) {
    for (const int contributions : {16, 256}) PrintErrors(scale, contributions);
  }
  std::printf("\nError of a sum over replicas, relative to the sum of magnitudes; bound %.1e\n",
              std::ldexp(1.0, -8));
  std::printf("%8s %12s %12s %12s\n", "replicas", "bf16", "largest", "fp32");
  for (const int replicas : {2, 4, 8, 64, 512}) PrintTrafficErrors(replicas);
}

}  // namespace
}  // namespace esteira

int main() { esteira::Main(); }
