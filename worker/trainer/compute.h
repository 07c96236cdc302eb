// What a worker computes with: a device, its kernels and its units, as the daemon's flags chose
// them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/model_spec.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/model/paced_units.h"
#include "worker/model/unit_compute.h"
#include "worker/trainer/compute_rates.h"

namespace esteira {

struct ComputeOptions {
  std::string device = "cpu";  // cpu | synthetic
  int threads = 1;
  int64_t memory_bytes = 0;  // of the device; 0: all that it has
  // Synthetic: one of the two; neither: kDefaultPassSeconds.
  double synthetic_pass_seconds = 0;
  double synthetic_flops = 0;
  double slow_down = 1;  // every F, B, I, W and R takes so many times as long; at least 1
};
inline constexpr double kDefaultPassSeconds = 0.01;

// InvalidArgument when the options contradict each other; Unimplemented when the device is not
// built in.
absl::Status CheckCompute(const ComputeOptions& options);

struct Compute {
  std::unique_ptr<Device> device;
  std::unique_ptr<Kernels> kernels;
  UnitFactory make_unit;
  bool check_finite = true;  // values can become non-finite
};
// Of options that CheckCompute has passed.
absl::StatusOr<Compute> MakeCompute(const ComputeOptions& options);

// What it achieves, `slow_down` included. The CPU is measured, for half a second or a few products
// of each kind if they take longer: the best of many short trials, so that workers that share cores
// and measure at the same time find what each has alone. The others' rates are given.
absl::StatusOr<ComputeRates> MeasureRates(const ComputeOptions& options);

inline double FlopsOf(const ComputeRates& rates, Precision precision) {
  return precision == Precision::kBf16 ? rates.flops_bf16 : rates.flops_fp32;
}

}  // namespace esteira
