// Where the time of a training step goes, and how near each part is to what the machine can do: a
// bf16 model on one rank in this process, against the best product rate for its shapes (ours and
// oneDNN's), copy bandwidth and the peak of the tiles, all measured in the same run. Operations and
// limits are in processor time of the stream's thread, the step in time on the wall; of each the
// shortest counts.
//
// step_limit [gpt2|llama] [sequence] [micro-batch] [micro-batches] [threads] [steps]
// step_limit check: a small model; fails when a part has fallen far behind its limit.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/timed_kernels.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/kernels/cpu/loops.h"

namespace esteira {
namespace {

struct Settings {
  bool check = false;
  bool llama = false;
  int64_t sequence = 256;
  int64_t micro_batch = 4;
  int64_t micro_batches = 1;
  int threads = 1;
  int steps = 6;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.check = absl::string_view(argv[1]) == "check";
  if (argc > 1) settings.llama = absl::string_view(argv[1]) == "llama";
  int64_t* const numbers[] = {&settings.sequence, &settings.micro_batch, &settings.micro_batches};
  for (int i = 0; i < 3 && i + 2 < argc; ++i) *numbers[i] = std::atoll(argv[i + 2]);
  if (argc > 5) settings.threads = std::atoi(argv[5]);
  if (argc > 6) settings.steps = std::atoi(argv[6]);
  return settings;
}

// GPT-2 124M, or a Llama of 150M; the check takes two layers and a small vocabulary.
JobSpec JobOf(const Settings& settings) {
  JobSpec job = ToyJob(settings.llama ? Architecture::kLlama : Architecture::kGpt2);
  job.model.num_layers = 12;
  job.model.hidden_size = 768;
  job.model.num_heads = 12;
  job.model.num_kv_heads = settings.llama ? 4 : 12;
  job.model.intermediate_size = settings.llama ? 2048 : 3072;
  job.model.vocab_size = settings.llama ? 32000 : 50304;
  if (settings.check) job.model.num_layers = 2;
  if (settings.check) job.model.vocab_size = 8192;
  job.model.max_sequence_length = job.sequence_length = settings.sequence;
  job.precision = Precision::kBf16;
  job.global_batch_size = settings.micro_batch * settings.micro_batches;
  job.layout.micro_batch_size = settings.micro_batch;
  return job;
}

struct PartOfStep {
  double seconds = 0;
  double limit = 0;
  double flops = 0;
};

using Parts = std::array<PartOfStep, kNumStepParts>;

// Half of the share of its limit that each part reaches, at least, on a machine that is busy with
// other things as well: less is a loss by a factor of two. The embedding is too short to be judged.
constexpr std::array<double, kNumStepParts> kLeastReached = {0, 0.24, 0.33, 0.14, 0.3, 0.38, 0.25};

using ShapeKey = std::tuple<std::string, int64_t, int64_t, int64_t>;

class Limits {
 public:
  explicit Limits(int threads)
      : threads_(threads), copy_(CopyBandwidth(threads)), peak_(TilePeak(threads)) {}

  double copy() const { return copy_; }
  double peak() const { return peak_; }
  double best_rate() const { return best_rate_; }

  // Seconds of a product with weights at the best rate; prints the rates of a new shape.
  double OfProduct(const TimedOperation& operation) {
    const ShapeKey key{operation.name, operation.rows, operation.in, operation.out};
    const auto found = products_.find(key);
    if (found != products_.end()) return found->second;
    const ProductPass pass = operation.name == "forward"          ? ProductPass::kForward
                             : operation.name == "input gradient" ? ProductPass::kInputGradient
                                                                  : ProductPass::kWeightGradient;
    const ProductTimes times = MeasureProduct(
        {pass, operation.layout, operation.rows, operation.in, operation.out}, threads_);
    const double tera = 1e-12 * operation.flops;
    std::printf("%-16s %6ld %6ld %6ld %8.2f %10.2f %8.2f %9.2f\n", operation.name.c_str(),
                operation.rows, operation.in, operation.out, tera / times.ours,
                tera / times.row_major, tera / times.packed, tera / operation.seconds);
    best_rate_ = std::max(best_rate_, operation.flops / times.best());
    return products_[key] = times.best();
  }

 private:
  int threads_;
  double copy_;
  double peak_;
  double best_rate_ = 0;
  std::map<ShapeKey, double> products_;
};

void PrintParts(const Parts& parts, double step, int64_t tokens, const Limits& limits) {
  PartOfStep sum;
  std::printf("\n%-22s %9s %7s %9s %9s\n", "part", "ms", "share", "limit ms", "reached");
  for (int i = 0; i < kNumStepParts; ++i) {
    const PartOfStep& part = parts[static_cast<size_t>(i)];
    std::printf("%-22s %9.2f %6.1f%% %9.2f %8.0f%%\n", NameOf(static_cast<StepPart>(i)),
                1e3 * part.seconds, 100 * part.seconds / step, 1e3 * part.limit,
                100 * part.limit / part.seconds);
    sum.seconds += part.seconds;
    sum.limit += part.limit;
    sum.flops += part.flops;
  }
  std::printf("%-22s %9.2f %6.1f%%\n", "engine and idle", 1e3 * (step - sum.seconds),
              100 * (step - sum.seconds) / step);
  std::printf("%-22s %9.2f %6.1f%% %9.2f %8.0f%%\n", "step", 1e3 * step, 100.0, 1e3 * sum.limit,
              100 * sum.limit / step);
  std::printf("%.0f tokens/s; products at %.2f TFLOP/s, %.0f %% of the tiles' peak of %.2f\n",
              static_cast<double>(tokens) / step, 1e-12 * sum.flops / step,
              100 * sum.flops / step / limits.peak(), 1e-12 * limits.peak());
}

bool ReachesLimits(const Parts& parts) {
  bool reaches = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double reached = parts[i].limit / parts[i].seconds;
    if (reached >= kLeastReached[i]) continue;
    std::printf("FAILED: %s reaches %.0f %% of its limit, and %.0f %% is the least\n",
                NameOf(static_cast<StepPart>(i)), 100 * reached, 100 * kLeastReached[i]);
    reaches = false;
  }
  return reaches;
}

struct Measured {
  std::vector<TimedOperation> operations;
  double step_seconds = std::numeric_limits<double>::infinity();
};

Measured RunSteps(const JobSpec& job, const Settings& settings) {
  TimedKernels* timed = nullptr;
  LocalCluster::Options options;
  options.kernels = [&](int) -> std::unique_ptr<Kernels> {
    auto kernels = MakeTimedKernels(job.model, MakeCpuKernels(settings.threads));
    timed = kernels.get();
    return kernels;
  };
  auto cluster = LocalCluster::Make(job, options);
  CHECK(cluster.ok());
  Measured measured;
  for (int step = 1; step <= settings.steps; ++step) {
    timed->BeginStep();
    const auto begin = std::chrono::steady_clock::now();
    CHECK((*cluster)->engine(0).Step(step, ToySamples(job), /*hash=*/false).ok());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    measured.step_seconds = std::min(measured.step_seconds, elapsed.count());
  }
  measured.operations.assign(timed->operations().begin(), timed->operations().end());
  return measured;
}

Parts PartsOf(const std::vector<TimedOperation>& operations, Limits& limits) {
  Parts parts;
  for (const TimedOperation& operation : operations) {
    PartOfStep& part = parts[static_cast<size_t>(operation.part)];
    part.seconds += operation.seconds;
    part.flops += operation.flops;
    if (operation.rows > 0) part.limit += limits.OfProduct(operation);
    part.limit += static_cast<double>(operation.bytes) / limits.copy();
  }
  // Attention's own products have no library's rate to compare with: the best of the others.
  for (const TimedOperation& operation : operations) {
    if (operation.rows > 0) continue;
    parts[static_cast<size_t>(operation.part)].limit += operation.flops / limits.best_rate();
  }
  return parts;
}

void PrintOperations(const std::vector<TimedOperation>& operations) {
  std::map<std::string, std::pair<double, int>> by_name;
  for (const TimedOperation& operation : operations) {
    auto& [seconds, count] = by_name[operation.name];
    seconds += operation.seconds;
    ++count;
  }
  std::printf("\n%-24s %6s %9s\n", "operation", "times", "ms");
  for (const auto& [name, time] : by_name) {
    std::printf("%-24s %6d %9.2f\n", name.c_str(), time.second, 1e3 * time.first);
  }
}

bool Main(const Settings& settings) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const Measured measured = RunSteps(JobOf(settings), settings);
  std::printf("%s, %ld x %ld x %ld tokens, %d threads, %s\n\n", settings.llama ? "llama" : "gpt2",
              settings.micro_batches, settings.micro_batch, settings.sequence, settings.threads,
              LoopsOfThisCpu().name);
  std::printf("%-16s %6s %6s %6s %8s %10s %8s %9s\n", "TFLOP/s", "rows", "in", "out", "alone",
              "row-major", "packed", "in step");
  Limits limits(settings.threads);
  const Parts parts = PartsOf(measured.operations, limits);
  PrintOperations(measured.operations);
  PrintParts(parts, measured.step_seconds,
             settings.micro_batches * settings.micro_batch * settings.sequence, limits);
  std::printf("copies at %.1f GB/s\n", 1e-9 * limits.copy());
  return !settings.check || ReachesLimits(parts);
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  const esteira::Settings settings = esteira::Parse(argc, argv);
  if (settings.check && &esteira::LoopsOfThisCpu() != &esteira::kLoopsAmx) {
    std::printf("skipped: the least shares are those of a CPU with AMX, and this one runs %s\n",
                esteira::LoopsOfThisCpu().name);
    return 77;
  }
  return esteira::Main(settings) ? 0 : 1;
}
