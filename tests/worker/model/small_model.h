// A whole model on one device for tests: its units, their parameters, gradients, and guarded
// buffers for one micro-batch. Every instruction runs as an engine would run it, with the workspace
// overwritten before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/model_spec.h"
#include "common/plan/sizes.h"
#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/model/unit_compute.h"

namespace esteira {

struct TestBatch {
  int64_t batch = 0;
  int64_t sequence = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
};
// Tokens and targets by a fixed rule; every fifth target is to be ignored.
TestBatch MakeTestBatch(const ModelSpec& model, int64_t batch, int64_t sequence);
// Sequence `index` alone.
TestBatch SequenceOf(const TestBatch& batch, int64_t index);

// Memory of `bytes`, full of NaN, with as much again behind it that nobody may touch.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  GuardedBuffer(Device& device, int64_t bytes);
  std::byte* data() const { return buffer_.data(); }
  int64_t bytes() const { return bytes_; }
  void Scribble();
  // Whether everything from `used` on, and what lies behind, is as Scribble left it.
  bool IntactFrom(int64_t used) const;
  std::vector<std::byte> Copy() const { return {data(), data() + bytes_}; }

 private:
  Buffer buffer_;
  int64_t bytes_ = 0;
};

// One micro-batch in flight: its activations, their gradients and what each unit saved.
struct InFlight {
  TestBatch batch;
  std::vector<GuardedBuffer> y;      // of each unit
  std::vector<GuardedBuffer> dx;     // of each unit
  std::vector<GuardedBuffer> saved;  // of each unit
};

class SmallModel {
 public:
  SmallModel(const ModelSpec& model, Precision precision, std::unique_ptr<Kernels> kernels);

  enum class Mode {
    kTrain,      // F that saves
    kDiscard,    // F that will be recomputed
    kRecompute,  // R
    kEvaluate,
  };

  int num_compute_units() const { return NumComputeUnits(model_); }
  const std::vector<UnitSpec>& units() const { return units_; }
  const ModelSpec& model() const { return model_; }
  Precision precision() const { return precision_; }

  void SetParameters(const std::function<float(const std::string& name, int64_t index)>& value);
  void SetDropout(double rate) { dropout_ = rate; }
  void ClearGradients();
  // Gradients become NaN; the next weight pass of each unit begins its sums.
  void ScribbleGradients();
  void ClearLoss() { *loss() = {}; }

  // Buffers as a plan with `planned_batch` sequences a micro-batch would give them.
  InFlight Launch(const TestBatch& batch, int64_t planned_batch);
  void Forward(InFlight& flight, int unit, Mode mode);
  void BackwardInput(InFlight& flight, int unit);
  void BackwardWeight(InFlight& flight, int unit);
  // All units: F in order; I and W of each in reverse order.
  void ForwardAll(InFlight& flight, Mode mode = Mode::kTrain);
  void BackwardAll(InFlight& flight);

  LossSums* loss() { return reinterpret_cast<LossSums*>(loss_.data()); }
  // Of a logical parameter; the ends of a tied table are added up.
  std::vector<float> Gradient(const std::string& name) const;
  // Of all logical parameters, one after another.
  std::vector<float> ParameterGradients() const;
  // Whole windows, one unit after another.
  std::vector<float> AllGradients() const;
  std::vector<float> Logits(const InFlight& flight) const;
  std::byte* parameters(int unit) { return parameters_[static_cast<size_t>(unit)].data(); }
  float* gradients(int unit) const;
  GuardedBuffer& workspace() { return workspace_; }
  BufferLayout Saved(int unit, int64_t batch, int64_t sequence) const;
  BufferLayout Workspace(int unit, int64_t batch, int64_t sequence) const;
  int64_t ActivationBytes(int64_t batch, int64_t sequence) const;

 private:
  UnitArguments Arguments(InFlight& flight, int unit);
  Tensor Activation(const TestBatch& batch, const GuardedBuffer& buffer) const;
  void Finish(const InFlight& flight, int unit);

  ModelSpec model_;
  Precision precision_;
  std::vector<UnitSpec> units_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<UnitCompute>> computes_;
  std::vector<Buffer> parameters_;
  std::vector<Buffer> gradients_;
  Buffer loss_;
  GuardedBuffer workspace_;
  double dropout_ = 0;
  std::vector<GradientSum> next_sum_;  // by compute unit
};

// As floats, from fp32 or bf16.
std::vector<float> ReadFloats(const Tensor& tensor);
void WriteFloats(const std::vector<float>& values, const Tensor& tensor);
// |a - b| / |b|, in the Euclidean norm.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace esteira
