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

// Training as one would write it down without an engine: the whole global batch at once through the
// units on the reference kernels, one mean, one clip, one learning rate, and AdamW in double
// precision, each from its own formula. Knows no plan, no micro-batches, no slots and no ranks.
class NaiveTraining {
 public:
  explicit NaiveTraining(const JobSpec& job);

  struct StepResult {
    double loss = 0;
    double gradient_norm = 0;
    double learning_rate = 0;
    int64_t valid_tokens = 0;
    bool skipped = false;
  };
  StepResult Step(int64_t step, const SampleReader& samples);
  // The mean loss of the step's batch with these weights, by unit; nothing else changes.
  double LossAt(const std::vector<std::vector<double>>& weights, int64_t step,
                const SampleReader& samples);

  // The optimizer's state by unit, each as the unit's flat buffer.
  const std::vector<std::vector<double>>& master() const { return master_; }
  const std::vector<std::vector<double>>& m() const { return m_; }
  const std::vector<std::vector<double>>& v() const { return v_; }

 private:
  void ReadBatch(int64_t step, const SampleReader& samples);
  LossSums Forward(bool evaluate);
  void Backward();
  UnitArguments Arguments(int unit);
  double MeanGradientNorm(double valid_tokens) const;
  double LearningRateOf(int64_t step) const;
  void Update(double rate, double scale);
  void SetParameters(const std::vector<std::vector<double>>& weights);
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
  int64_t first_sample_ = 0;  // of the batch that was read
  int updates_ = 0;
};

}  // namespace esteira
