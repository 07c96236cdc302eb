#include "worker/launch_check/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/exact_sum.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "worker/optimizer/learning_rate.h"

namespace esteira {
namespace {

Tensor Column(const Buffer& buffer, ElementType type, int64_t elements) {
  return {buffer.data(), type, elements, 1};
}

}  // namespace

struct Oracle::Unit {
  UnitSpec spec;
  std::unique_ptr<UnitCompute> compute;  // null: parameters only
  Buffer input, saved;                   // of one micro-batch
  Buffer parameters, sums, master, m, v;

  bool has_state() const { return spec.flat_elements > 0 && spec.owner < 0; }
};

Oracle::Oracle(const JobSpec& job, int64_t micro_batch_size, Device& device, Kernels& kernels)
    : job_(job),
      micro_batch_size_(micro_batch_size),
      device_(device),
      kernels_(kernels),
      stream_(device.NewStream("oracle")),
      exact_(job.numerics == Numerics::kExact) {}

Oracle::~Oracle() = default;

absl::StatusOr<std::unique_ptr<Oracle>> Oracle::Make(const JobSpec& job, int64_t micro_batch_size,
                                                     Device& device, Kernels& kernels) {
  std::unique_ptr<Oracle> oracle(new Oracle(job, micro_batch_size, device, kernels));
  RETURN_IF_ERROR(oracle->AllocateUnits());
  RETURN_IF_ERROR(oracle->AllocateScratch());
  return oracle;
}

absl::StatusOr<Buffer> Oracle::Allocate(int64_t bytes) {
  return device_.Allocate(std::max<int64_t>(bytes, 1), MemoryKind::kOther);
}

absl::Status Oracle::AllocateUnits() {
  const int64_t rows = micro_batch_size_ * job_.sequence_length;
  for (UnitSpec& spec : MakeUnits(job_.model)) {
    auto unit = std::make_unique<Unit>();
    if (spec.kind != UnitKind::kTied) {
      unit->compute = MakeUnitCompute(job_.model, spec, job_.precision);
      ASSIGN_OR_RETURN(unit->input,
                       Allocate(rows * job_.model.hidden_size * BytesOf(job_.precision)));
      ASSIGN_OR_RETURN(unit->saved, Allocate(SavedLayout(job_.model, spec, micro_batch_size_,
                                                         job_.sequence_length, job_.precision)
                                                 .bytes));
    }
    unit->spec = std::move(spec);
    if (unit->has_state()) {
      const int64_t elements = unit->spec.flat_elements;
      ASSIGN_OR_RETURN(unit->parameters, Allocate(elements * BytesOf(job_.precision)));
      ASSIGN_OR_RETURN(unit->sums, Allocate(elements * BytesOf(SumType(job_.numerics))));
      for (Buffer* state : {&unit->master, &unit->m, &unit->v}) {
        ASSIGN_OR_RETURN(*state, Allocate(elements * BytesOf(ElementType::kFp32)));
      }
      InitialWeights(unit->spec, job_.seed, {0, elements},
                     {Column(unit->master, ElementType::kFp32, elements).as<float>(),
                      static_cast<size_t>(elements)});
      kernels_.Convert(Column(unit->master, ElementType::kFp32, elements),
                       Column(unit->parameters, ComputeType(job_.precision), elements), *stream_);
    }
    units_.push_back(std::move(unit));
  }
  return stream_->Synchronize();
}

absl::Status Oracle::AllocateScratch() {
  const int64_t rows = micro_batch_size_ * job_.sequence_length;
  int64_t flat = 0, workspace = 0;
  for (const auto& unit : units_) {
    flat = std::max(flat, unit->spec.flat_elements);
    if (!unit->compute) continue;
    workspace = std::max(workspace, WorkspaceLayout(job_.model, unit->spec, micro_batch_size_,
                                                    job_.sequence_length, job_.precision)
                                        .bytes);
  }
  for (Buffer& buffer : activation_gradients_) {
    ASSIGN_OR_RETURN(buffer, Allocate(rows * job_.model.hidden_size * BytesOf(job_.precision)));
  }
  for (Buffer* buffer : {&gradients_[0], &gradients_[1], &gradient_}) {
    ASSIGN_OR_RETURN(*buffer, Allocate(flat * BytesOf(ElementType::kFp32)));
  }
  for (Buffer* buffer : {&tokens_, &targets_}) {
    ASSIGN_OR_RETURN(*buffer, Allocate(rows * BytesOf(ElementType::kInt32)));
  }
  ASSIGN_OR_RETURN(workspace_, Allocate(workspace));
  ASSIGN_OR_RETURN(losses_, Allocate(sizeof(LossSums)));
  ASSIGN_OR_RETURN(refused_, Allocate(sizeof(int32_t)));
  ASSIGN_OR_RETURN(blocks_, Allocate(flat / kBlockElements * static_cast<int64_t>(sizeof(double))));
  return absl::OkStatus();
}

Oracle::Unit& Oracle::HolderOf(int unit) const {
  Unit& named = *units_[static_cast<size_t>(unit)];
  return named.spec.owner < 0 ? named : *units_[static_cast<size_t>(named.spec.owner)];
}

std::span<const float> Oracle::Master(int unit) const {
  const Unit& named = *units_[static_cast<size_t>(unit)];
  if (!named.has_state()) return {};
  return {Column(named.master, ElementType::kFp32, named.spec.flat_elements).as<float>(),
          static_cast<size_t>(named.spec.flat_elements)};
}

UnitArguments Oracle::Arguments(size_t index, int64_t first_sample, int64_t count) {
  const Unit& unit = *units_[index];
  const int64_t rows = count * job_.sequence_length;
  const ElementType type = ComputeType(job_.precision);
  const auto activation = [&](const Buffer& buffer) {
    return Tensor{buffer.data(), type, rows, job_.model.hidden_size};
  };
  UnitArguments arguments;
  arguments.batch = count;
  arguments.sequence = job_.sequence_length;
  for (int used : unit.spec.uses) {
    const bool tied = used != static_cast<int>(index);
    const Unit& holder = HolderOf(used);
    (tied ? arguments.tied_parameters : arguments.parameters) = holder.parameters.data();
    (tied ? arguments.tied_gradients : arguments.gradients) =
        reinterpret_cast<float*>(exact_ ? gradients_[tied ? 1 : 0].data() : holder.sums.data());
  }
  arguments.dropout = {.rate = job_.dropout,
                       .seed = job_.seed,
                       .site = DropoutSite(static_cast<int>(index)),
                       .first_sample = first_sample};
  arguments.saved = unit.saved.data();
  arguments.workspace = workspace_.data();
  if (unit.spec.kind == UnitKind::kEmbedding) {
    arguments.tokens = Column(tokens_, ElementType::kInt32, rows);
  } else {
    arguments.x = activation(unit.input);
    arguments.dx = activation(activation_gradients_[index % 2]);
  }
  if (unit.spec.kind == UnitKind::kHead) {
    arguments.targets = Column(targets_, ElementType::kInt32, rows);
    arguments.loss = reinterpret_cast<LossSums*>(losses_.data());
  } else {
    arguments.y = activation(units_[index + 1]->input);
    arguments.dy = activation(activation_gradients_[(index + 1) % 2]);
  }
  return arguments;
}

// Exact: the gradient of one unit and micro-batch goes to fixed point, and leaves zeros.
void Oracle::AddGradients(size_t index) {
  if (!exact_) return;
  for (int used : units_[index]->spec.uses) {
    const Unit& holder = HolderOf(used);
    const int64_t elements = holder.spec.flat_elements;
    if (elements == 0) continue;
    const bool tied = used != static_cast<int>(index);
    kernels_.AddFixedPoint(Column(gradients_[tied ? 1 : 0], ElementType::kFp32, elements),
                           kLargestFixedPoint, Column(holder.sums, ElementType::kInt64, elements),
                           reinterpret_cast<int32_t*>(refused_.data()), *stream_);
  }
}

absl::StatusOr<LossSums> Oracle::RunMicroBatch(int64_t first_sample, int64_t count,
                                               const SampleReader& samples) {
  const auto rows = static_cast<size_t>(count * job_.sequence_length);
  RETURN_IF_ERROR(samples(first_sample, count, {reinterpret_cast<int32_t*>(tokens_.data()), rows},
                          {reinterpret_cast<int32_t*>(targets_.data()), rows}));
  auto* losses = reinterpret_cast<LossSums*>(losses_.data());
  *losses = LossSums();
  const auto num_units = static_cast<size_t>(NumComputeUnits(job_.model));
  for (size_t unit = 0; unit < num_units; ++unit) {
    units_[unit]->compute->Forward(Arguments(unit, first_sample, count), kernels_, *stream_);
  }
  for (size_t unit = num_units; unit-- > 0;) {
    const UnitArguments arguments = Arguments(unit, first_sample, count);
    units_[unit]->compute->BackwardInput(arguments, kernels_, *stream_);
    units_[unit]->compute->BackwardWeight(arguments, kernels_, *stream_);
    AddGradients(unit);
  }
  RETURN_IF_ERROR(stream_->Synchronize());
  return *losses;
}

Tensor Oracle::Gradient(const Unit& unit, int64_t offset, int64_t elements) {
  const ElementType type = SumType(job_.numerics);
  const Tensor sums = {unit.sums.data() + offset * BytesOf(type), type, elements, 1};
  if (!exact_) return sums;
  const Tensor gradient = Column(gradient_, ElementType::kFp32, elements);
  kernels_.FromFixedPoint(sums, gradient, *stream_);
  return gradient;
}

absl::StatusOr<double> Oracle::SumOfSquares() {
  ExactSum sum;
  for (const auto& unit : units_) {
    if (!unit->has_state()) continue;
    auto* blocks = reinterpret_cast<double*>(blocks_.data());
    kernels_.SumSquaresByBlock(Gradient(*unit, 0, unit->spec.flat_elements), blocks, *stream_);
    RETURN_IF_ERROR(stream_->Synchronize());
    for (int64_t i = 0; i < unit->spec.flat_elements / kBlockElements; ++i) sum.Add(blocks[i]);
  }
  return sum.Value();
}

void Oracle::Update(double learning_rate, const Outcome& outcome) {
  AdamWStep step{.learning_rate = learning_rate,
                 .beta1 = job_.adamw.beta1,
                 .beta2 = job_.adamw.beta2,
                 .epsilon = job_.adamw.epsilon,
                 .gradient_scale = ClipFactor(outcome.gradient_norm, job_.gradient_clip_norm) /
                                   static_cast<double>(outcome.valid_tokens),
                 .step = ++updates_};
  for (const auto& unit : units_) {
    if (!unit->has_state()) continue;
    for (const ParameterSpec& parameter : unit->spec.parameters) {
      const auto part = [&](const Buffer& buffer, ElementType type) {
        return Tensor{buffer.data() + parameter.offset * BytesOf(type), type, parameter.elements,
                      1};
      };
      step.weight_decay = parameter.decay ? job_.adamw.weight_decay : 0;
      kernels_.AdamW(step, Gradient(*unit, parameter.offset, parameter.elements),
                     part(unit->master, ElementType::kFp32), part(unit->m, ElementType::kFp32),
                     part(unit->v, ElementType::kFp32),
                     part(unit->parameters, ComputeType(job_.precision)), *stream_);
    }
  }
}

absl::StatusOr<Oracle::Outcome> Oracle::Step(int64_t step, const SampleReader& samples) {
  for (const auto& unit : units_) {
    if (!unit->has_state()) continue;
    const ElementType type = SumType(job_.numerics);
    std::memset(unit->sums.data(), 0,
                static_cast<size_t>(unit->spec.flat_elements * BytesOf(type)));
  }
  Outcome outcome;
  ExactSum loss;
  const int64_t first = (step - 1) * job_.global_batch_size;
  for (int64_t done = 0; done < job_.global_batch_size; done += micro_batch_size_) {
    ASSIGN_OR_RETURN(
        const LossSums sums,
        RunMicroBatch(first + done, std::min(micro_batch_size_, job_.global_batch_size - done),
                      samples));
    loss.Add(sums.loss);
    outcome.valid_tokens += sums.valid_tokens;
  }
  const double tokens = static_cast<double>(std::max<int64_t>(outcome.valid_tokens, 1));
  ASSIGN_OR_RETURN(const double squares, SumOfSquares());
  outcome.loss = loss.Value() / tokens;
  outcome.gradient_norm = std::sqrt(squares) / tokens;
  if (outcome.valid_tokens > 0 && std::isfinite(outcome.loss) &&
      std::isfinite(outcome.gradient_norm)) {
    Update(LearningRate(job_.schedule, job_.adamw.learning_rate, step, job_.steps), outcome);
  }
  RETURN_IF_ERROR(stream_->Synchronize());
  return outcome;
}

}  // namespace esteira
