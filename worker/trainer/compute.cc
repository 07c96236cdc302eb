#include "worker/trainer/compute.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

// A linear layer of some hundred tokens in a model of hidden size 1024; and vectors that no cache
// holds.
constexpr int64_t kTokens = 256;
constexpr int64_t kHidden = 1024;
constexpr int64_t kVectorElements = int64_t{8} << 20;
constexpr absl::Duration kTrialTime = absl::Milliseconds(160);
constexpr int kLeastTrials = 3;

SyntheticPace PaceOf(const ComputeOptions& options) {
  if (options.synthetic_flops > 0) return {.flops = options.synthetic_flops / options.slow_down};
  const double seconds =
      options.synthetic_pass_seconds > 0 ? options.synthetic_pass_seconds : kDefaultPassSeconds;
  return {.pass_seconds = seconds * options.slow_down};
}

// Zero-filled tensors of a device, for one trial.
class Workbench {
 public:
  explicit Workbench(Compute& compute)
      : compute_(compute), stream_(compute.device->NewStream("rates")) {}

  absl::StatusOr<Tensor> Make(ElementType type, int64_t rows, int64_t columns) {
    ASSIGN_OR_RETURN(Buffer buffer,
                     compute_.device->Allocate(rows * columns * BytesOf(type), MemoryKind::kOther));
    buffers_.push_back(std::move(buffer));
    return Tensor{buffers_.back().data(), type, rows, columns};
  }

  // The shortest of the times that `issue` takes.
  template <typename Issue>
  absl::StatusOr<double> BestSeconds(const Issue& issue) {
    absl::Duration best = absl::InfiniteDuration();
    const absl::Time deadline = absl::Now() + kTrialTime;
    // The first one makes what the kernels keep, and is not better than others.
    for (int trial = 0; trial <= kLeastTrials || absl::Now() < deadline; ++trial) {
      const absl::Time start = absl::Now();
      issue(*compute_.kernels, *stream_);
      RETURN_IF_ERROR(stream_->Synchronize());
      best = std::min(best, absl::Now() - start);
    }
    return absl::ToDoubleSeconds(best);
  }

 private:
  Compute& compute_;
  std::vector<Buffer> buffers_;
  const std::unique_ptr<Stream> stream_;
};

absl::StatusOr<double> MeasureFlops(Compute& compute, ElementType type) {
  Workbench bench(compute);
  ASSIGN_OR_RETURN(const Tensor x, bench.Make(type, kTokens, kHidden));
  ASSIGN_OR_RETURN(const Tensor w, bench.Make(type, kHidden, kHidden));
  ASSIGN_OR_RETURN(const Tensor y, bench.Make(type, kTokens, kHidden));
  ASSIGN_OR_RETURN(const double seconds, bench.BestSeconds([&](Kernels& kernels, Stream& stream) {
    kernels.LinearForward(x, w, Tensor{}, WeightLayout::kInOut, y, stream);
  }));
  return 2.0 * kTokens * kHidden * kHidden / seconds;
}

absl::StatusOr<double> MeasureMemory(Compute& compute) {
  Workbench bench(compute);
  ASSIGN_OR_RETURN(const Tensor x, bench.Make(ElementType::kFp32, 1, kVectorElements));
  ASSIGN_OR_RETURN(const Tensor sum, bench.Make(ElementType::kFp32, 1, kVectorElements));
  ASSIGN_OR_RETURN(const double seconds, bench.BestSeconds([&](Kernels& kernels, Stream& stream) {
    kernels.Accumulate(x, sum, stream);
  }));
  return 3.0 * static_cast<double>(x.bytes()) / seconds;  // two are read, one is written
}

}  // namespace

absl::Status CheckCompute(const ComputeOptions& options) {
  if (options.device == "cuda") return MakeCudaDevice(0).status();
  if (options.device != "cpu" && options.device != "synthetic") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", options.device, ": use cpu, cuda or synthetic"));
  }
  if (!(options.synthetic_pass_seconds >= 0) || !(options.synthetic_flops >= 0)) {
    return absl::InvalidArgumentError(
        "--synthetic_pass_seconds and --synthetic_flops must be positive");
  }
  if (options.synthetic_pass_seconds > 0 && options.synthetic_flops > 0) {
    return absl::InvalidArgumentError(
        "--synthetic_pass_seconds and --synthetic_flops say the same in two ways: give one");
  }
  if (options.device != "synthetic" &&
      (options.synthetic_pass_seconds > 0 || options.synthetic_flops > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--synthetic_pass_seconds and --synthetic_flops need --device synthetic, not ",
                     options.device));
  }
  if (!(options.slow_down >= 1 && options.slow_down <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slow_down ", options.slow_down, ": a factor of 1 to 1000000"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Compute> MakeCompute(const ComputeOptions& options) {
  RETURN_IF_ERROR(CheckCompute(options));
  Compute compute;
  compute.device =
      MakeCpuDevice({.threads = options.threads, .memory_bytes = options.memory_bytes});
  compute.kernels = MakeCpuKernels(options.threads);
  compute.make_unit = MakeUnitCompute;
  if (options.device == "synthetic") {
    compute.make_unit = SyntheticUnits(PaceOf(options), MakePacer());
    compute.check_finite = false;
  } else if (options.slow_down > 1) {
    compute.make_unit = SlowedUnits(MakeUnitCompute, options.slow_down, MakePacer());
  }
  return compute;
}

absl::StatusOr<ComputeRates> MeasureRates(const ComputeOptions& options) {
  RETURN_IF_ERROR(CheckCompute(options));
  if (options.device == "synthetic") {
    const SyntheticPace pace = PaceOf(options);
    return ComputeRates{
        .flops_fp32 = pace.flops, .flops_bf16 = pace.flops, .pass_seconds = pace.pass_seconds};
  }
  ASSIGN_OR_RETURN(Compute compute, MakeCompute(options));
  ComputeRates rates;
  ASSIGN_OR_RETURN(rates.flops_fp32, MeasureFlops(compute, ElementType::kFp32));
  ASSIGN_OR_RETURN(rates.flops_bf16, MeasureFlops(compute, ElementType::kBf16));
  ASSIGN_OR_RETURN(rates.memory_bytes_per_second, MeasureMemory(compute));
  rates.flops_fp32 /= options.slow_down;
  rates.flops_bf16 /= options.slow_down;
  return rates;
}

}  // namespace esteira
