#include "tests/worker/engine/naive_training.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "worker/optimizer/learning_rate.h"

namespace esteira {
namespace {

// A tied table is one parameter here: its head end is its owner.
int OwnerOf(const std::vector<UnitSpec>& units, int unit) {
  const int owner = units[static_cast<size_t>(unit)].owner;
  return owner < 0 ? unit : owner;
}

std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), static_cast<size_t>(buffer.bytes() / 4)};
}

}  // namespace

NaiveTraining::NaiveTraining(const JobSpec& job)
    : job_(job),
      units_(MakeUnits(job.model)),
      device_(MakeCpuDevice({})),
      kernels_(MakeCpuKernels(1)),
      stream_(device_->NewStream("naive")) {
  const int64_t sequence = job.sequence_length;
  int64_t workspace_bytes = 0;
  for (const UnitSpec& unit : units_) {
    const auto size = static_cast<size_t>(unit.flat_elements);
    std::vector<float> initial(size);
    InitialWeights(unit, job.seed, {0, unit.flat_elements}, initial);
    master_.emplace_back(initial.begin(), initial.end());
    m_.emplace_back(size);
    v_.emplace_back(size);
    parameters_.push_back(NewBuffer(unit.flat_elements * 4));
    std::copy(initial.begin(), initial.end(), Floats(parameters_.back()).begin());
    gradients_.push_back(NewBuffer(unit.flat_elements * 4));
    if (unit.kind == UnitKind::kTied) continue;
    compute_.push_back(MakeUnitCompute(job.model, unit, Precision::kFp32));
    activations_.push_back(NewBuffer(sequence * job.model.hidden_size * 4));
    activation_gradients_.push_back(NewBuffer(sequence * job.model.hidden_size * 4));
    saved_.push_back(NewBuffer(SavedLayout(job.model, unit, 1, sequence, Precision::kFp32).bytes));
    workspace_bytes = std::max(
        workspace_bytes, WorkspaceLayout(job.model, unit, 1, sequence, Precision::kFp32).bytes);
  }
  workspace_ = NewBuffer(workspace_bytes);
  inputs_ = NewBuffer(sequence * 4);
  targets_ = NewBuffer(sequence * 4);
  loss_ = NewBuffer(sizeof(LossSums));
}

Buffer NaiveTraining::NewBuffer(int64_t bytes) {
  auto buffer = device_->Allocate(bytes, MemoryKind::kOther);
  CHECK(buffer.ok());
  return *std::move(buffer);
}

UnitArguments NaiveTraining::Arguments(int unit) {
  const auto u = static_cast<size_t>(unit);
  const int64_t sequence = job_.sequence_length;
  const auto activation = [&](const Buffer& buffer) {
    return Tensor{buffer.data(), ElementType::kFp32, sequence, job_.model.hidden_size};
  };
  const auto ids = [&](const Buffer& buffer) {
    return Tensor{buffer.data(), ElementType::kInt32, sequence, 1};
  };
  UnitArguments arguments;
  arguments.batch = 1;
  arguments.sequence = sequence;
  arguments.parameters = parameters_[u].data();
  arguments.gradients = Floats(gradients_[u]).data();
  if (units_[u].uses.size() > 1) {
    const auto tied = static_cast<size_t>(OwnerOf(units_, units_[u].uses[1]));
    arguments.tied_parameters = parameters_[tied].data();
    arguments.tied_gradients = Floats(gradients_[tied]).data();
  }
  arguments.tokens = ids(inputs_);
  arguments.targets = ids(targets_);
  if (unit > 0) {
    arguments.x = activation(activations_[u - 1]);
    arguments.dx = activation(activation_gradients_[u - 1]);
  }
  arguments.y = activation(activations_[u]);
  arguments.dy = activation(activation_gradients_[u]);
  arguments.saved = saved_[u].data();
  arguments.workspace = workspace_.data();
  arguments.loss = reinterpret_cast<LossSums*>(loss_.data());
  return arguments;
}

void NaiveTraining::RunSample(int64_t sample, const SampleReader& samples) {
  const auto sequence = static_cast<size_t>(job_.sequence_length);
  CHECK(samples(sample, 1, {reinterpret_cast<int32_t*>(inputs_.data()), sequence},
                {reinterpret_cast<int32_t*>(targets_.data()), sequence})
            .ok());
  const int count = static_cast<int>(compute_.size());
  for (int u = 0; u < count; ++u) {
    compute_[static_cast<size_t>(u)]->Forward(Arguments(u), *kernels_, *stream_);
  }
  for (int u = count - 1; u >= 0; --u) {
    compute_[static_cast<size_t>(u)]->BackwardInput(Arguments(u), *kernels_, *stream_);
    compute_[static_cast<size_t>(u)]->BackwardWeight(Arguments(u), *kernels_, *stream_);
  }
  CHECK(stream_->Synchronize().ok());
}

double NaiveTraining::MeanGradientNorm(double valid_tokens) const {
  double squares = 0;
  for (const Buffer& gradients : gradients_) {
    for (float g : Floats(gradients)) squares += double{g} * g;
  }
  return std::sqrt(squares) / valid_tokens;
}

void NaiveTraining::Update(int64_t step, double scale) {
  const AdamWOptions& adamw = job_.adamw;
  const double rate = LearningRate(job_.schedule, adamw.learning_rate, step, job_.steps);
  const double correction1 = 1 - std::pow(adamw.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(adamw.beta2, static_cast<double>(step));
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const ParameterSpec& parameter : units_[u].parameters) {
      const double decay = parameter.decay ? adamw.weight_decay : 0;
      for (int64_t e = parameter.offset; e < parameter.offset + parameter.elements; ++e) {
        const auto i = static_cast<size_t>(e);
        const double g = Floats(gradients_[u])[i] * scale;
        m_[u][i] = adamw.beta1 * m_[u][i] + (1 - adamw.beta1) * g;
        v_[u][i] = adamw.beta2 * v_[u][i] + (1 - adamw.beta2) * g * g;
        const double update =
            m_[u][i] / correction1 / (std::sqrt(v_[u][i] / correction2) + adamw.epsilon);
        master_[u][i] -= rate * (update + decay * master_[u][i]);
        Floats(parameters_[u])[i] = static_cast<float>(master_[u][i]);
      }
    }
  }
}

NaiveTraining::StepResult NaiveTraining::Step(int64_t step, const SampleReader& samples) {
  for (const Buffer& gradients : gradients_) {
    std::fill(Floats(gradients).begin(), Floats(gradients).end(), 0.0F);
  }
  auto& loss = *reinterpret_cast<LossSums*>(loss_.data());
  loss = LossSums();
  for (int64_t n = 0; n < job_.global_batch_size; ++n) {
    RunSample((step - 1) * job_.global_batch_size + n, samples);
  }
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  StepResult result = {loss.loss / valid_tokens, MeanGradientNorm(valid_tokens)};
  Update(step, ClipFactor(result.gradient_norm, job_.gradient_clip_norm) / valid_tokens);
  return result;
}

}  // namespace esteira
