#include "tests/worker/engine/naive_training.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "worker/kernels/reference/reference_kernels.h"

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
      kernels_(MakeReferenceKernels()),
      stream_(device_->NewStream("naive")) {
  const int64_t batch = job.global_batch_size;
  const int64_t sequence = job.sequence_length;
  const int64_t activation_bytes = batch * sequence * job.model.hidden_size * 4;
  int64_t workspace_bytes = 0;
  for (const UnitSpec& unit : units_) {
    const auto size = static_cast<size_t>(unit.flat_elements);
    std::vector<float> initial(size);
    InitialWeights(unit, job.seed, {0, unit.flat_elements}, initial);
    master_.emplace_back(initial.begin(), initial.end());
    m_.emplace_back(size);
    v_.emplace_back(size);
    parameters_.push_back(NewBuffer(unit.flat_elements * 4));
    gradients_.push_back(NewBuffer(unit.flat_elements * 4));
    if (unit.kind == UnitKind::kTied) continue;
    compute_.push_back(MakeUnitCompute(job.model, unit, Precision::kFp32));
    activations_.push_back(NewBuffer(activation_bytes));
    activation_gradients_.push_back(NewBuffer(activation_bytes));
    saved_.push_back(
        NewBuffer(SavedLayout(job.model, unit, batch, sequence, Precision::kFp32).bytes));
    workspace_bytes = std::max(
        workspace_bytes, WorkspaceLayout(job.model, unit, batch, sequence, Precision::kFp32).bytes);
  }
  SetParameters(master_);
  workspace_ = NewBuffer(workspace_bytes);
  inputs_ = NewBuffer(batch * sequence * 4);
  targets_ = NewBuffer(batch * sequence * 4);
  loss_ = NewBuffer(sizeof(LossSums));
}

Buffer NaiveTraining::NewBuffer(int64_t bytes) {
  auto buffer = device_->Allocate(bytes, MemoryKind::kOther);
  CHECK(buffer.ok());
  return *std::move(buffer);
}

UnitArguments NaiveTraining::Arguments(int unit) {
  const auto u = static_cast<size_t>(unit);
  const int64_t rows = job_.global_batch_size * job_.sequence_length;
  const auto activation = [&](const Buffer& buffer) {
    return Tensor{buffer.data(), ElementType::kFp32, rows, job_.model.hidden_size};
  };
  const auto ids = [&](const Buffer& buffer) {
    return Tensor{buffer.data(), ElementType::kInt32, rows, 1};
  };
  UnitArguments arguments;
  arguments.batch = job_.global_batch_size;
  arguments.sequence = job_.sequence_length;
  arguments.dropout = {.rate = job_.dropout,
                       .seed = job_.seed,
                       .site = DropoutSite(unit),
                       .first_sample = first_sample_};
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

void NaiveTraining::SetParameters(const std::vector<std::vector<double>>& weights) {
  for (size_t u = 0; u < units_.size(); ++u) {
    const int owner = units_[u].owner;
    const std::vector<double>& from = weights[owner < 0 ? u : static_cast<size_t>(owner)];
    std::transform(from.begin(), from.end(), Floats(parameters_[u]).begin(),
                   [](double weight) { return static_cast<float>(weight); });
  }
}

void NaiveTraining::ReadBatch(int64_t step, const SampleReader& samples) {
  const auto tokens = static_cast<size_t>(job_.global_batch_size * job_.sequence_length);
  first_sample_ = (step - 1) * job_.global_batch_size;
  CHECK(samples(first_sample_, job_.global_batch_size,
                {reinterpret_cast<int32_t*>(inputs_.data()), tokens},
                {reinterpret_cast<int32_t*>(targets_.data()), tokens})
            .ok());
}

LossSums NaiveTraining::Forward(bool evaluate) {
  auto& loss = *reinterpret_cast<LossSums*>(loss_.data());
  loss = LossSums();
  for (size_t u = 0; u < compute_.size(); ++u) {
    UnitArguments arguments = Arguments(static_cast<int>(u));
    arguments.evaluate = evaluate;
    if (evaluate) arguments.dropout = {};
    compute_[u]->Forward(arguments, *kernels_, *stream_);
  }
  CHECK(stream_->Synchronize().ok());
  return loss;
}

void NaiveTraining::Backward() {
  for (const Buffer& gradients : gradients_) {
    std::fill(Floats(gradients).begin(), Floats(gradients).end(), 0.0F);
  }
  for (size_t u = compute_.size(); u-- > 0;) {
    const UnitArguments arguments = Arguments(static_cast<int>(u));
    compute_[u]->BackwardInput(arguments, *kernels_, *stream_);
    compute_[u]->BackwardWeight(arguments, *kernels_, *stream_);
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

// Linear warmup, then half a cosine from the peak at the end of the warmup to the last step.
double NaiveTraining::LearningRateOf(int64_t step) const {
  CHECK(job_.schedule.decay == Decay::kCosine);
  const auto warmup = static_cast<double>(job_.schedule.warmup_steps);
  const double peak = job_.adamw.learning_rate;
  const auto at = static_cast<double>(step);
  if (at <= warmup) return peak * at / warmup;
  const double progress = (at - warmup) / (static_cast<double>(job_.steps) - warmup);
  const double low = peak * job_.schedule.final_ratio;
  return low + (peak - low) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

void NaiveTraining::Update(double rate, double scale) {
  const AdamWOptions& adamw = job_.adamw;
  ++updates_;
  const double correction1 = 1 - std::pow(adamw.beta1, updates_);
  const double correction2 = 1 - std::pow(adamw.beta2, updates_);
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const ParameterSpec& parameter : units_[u].parameters) {
      const double decay = parameter.shape.size() > 1 ? adamw.weight_decay : 0;
      for (int64_t e = parameter.offset; e < parameter.offset + parameter.elements; ++e) {
        const auto i = static_cast<size_t>(e);
        const double g = Floats(gradients_[u])[i] * scale;
        m_[u][i] = adamw.beta1 * m_[u][i] + (1 - adamw.beta1) * g;
        v_[u][i] = adamw.beta2 * v_[u][i] + (1 - adamw.beta2) * g * g;
        const double update =
            m_[u][i] / correction1 / (std::sqrt(v_[u][i] / correction2) + adamw.epsilon);
        master_[u][i] -= rate * (update + decay * master_[u][i]);
      }
    }
  }
  SetParameters(master_);
}

NaiveTraining::StepResult NaiveTraining::Step(int64_t step, const SampleReader& samples) {
  ReadBatch(step, samples);
  const LossSums loss = Forward(false);
  StepResult result = {.learning_rate = LearningRateOf(step), .valid_tokens = loss.valid_tokens};
  result.skipped = loss.valid_tokens == 0;
  if (result.skipped) return result;
  Backward();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  result.loss = loss.loss / valid_tokens;
  result.gradient_norm = MeanGradientNorm(valid_tokens);
  const double clip = job_.gradient_clip_norm;
  const double factor = result.gradient_norm > clip ? clip / result.gradient_norm : 1;
  Update(result.learning_rate, factor / valid_tokens);
  return result;
}

double NaiveTraining::LossAt(const std::vector<std::vector<double>>& weights, int64_t step,
                             const SampleReader& samples) {
  ReadBatch(step, samples);
  SetParameters(weights);
  const LossSums loss = Forward(true);
  SetParameters(master_);
  return loss.loss / static_cast<double>(loss.valid_tokens);
}

}  // namespace esteira
