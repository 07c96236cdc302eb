#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/plan/job_spec.h"
#include "common/plan/model_spec.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// Training as one would write it down without an engine: sample by sample through the units,
// gradients added up, one mean, one clip, and AdamW in double precision. Knows no plan, no slots
// and no ranks.
class NaiveTraining {
 public:
  explicit NaiveTraining(const JobSpec& job);

  struct StepResult {
    double loss = 0;
    double gradient_norm = 0;
  };
  StepResult Step(int64_t step, const SampleReader& samples);
  // The master weights of a unit's flat buffer.
  const std::vector<double>& master(int unit) const { return master_[static_cast<size_t>(unit)]; }

 private:
  void RunSample(int64_t sample, const SampleReader& samples);
  UnitArguments Arguments(int unit);
  double MeanGradientNorm(double valid_tokens) const;
  void Update(int64_t step, double scale);
  Buffer NewBuffer(int64_t bytes);

  const JobSpec job_;
  const std::vector<UnitSpec> units_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Kernels> kernels_;
  const std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<UnitCompute>> compute_;
  std::vector<std::vector<double>> master_, m_, v_;  // by unit
  std::vector<Buffer> parameters_, gradients_;       // by unit, fp32
  std::vector<Buffer> activations_, activation_gradients_, saved_;
  Buffer workspace_, inputs_, targets_, loss_;
};

}  // namespace esteira
