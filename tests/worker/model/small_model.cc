#include "tests/worker/model/small_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

constexpr std::byte kScribble{0xff};  // NaN as fp32 and as bf16

Buffer Allocate(Device& device, int64_t bytes) {
  auto buffer = device.Allocate(bytes, MemoryKind::kOther);
  CHECK(buffer.ok());
  return *std::move(buffer);
}

Tensor Integers(const std::vector<int32_t>& values) {
  // Kernels only read them.
  auto* data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(values.data()));
  return {data, ElementType::kInt32, static_cast<int64_t>(values.size()), 1};
}

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

}  // namespace

TestBatch MakeTestBatch(const ModelSpec& model, int64_t batch, int64_t sequence) {
  TestBatch result{batch, sequence, {}, {}};
  for (int64_t i = 0; i < batch * sequence; ++i) {
    const uint64_t bits = Mix64(static_cast<uint64_t>(i));
    const auto vocabulary = static_cast<uint64_t>(model.vocab_size);
    result.tokens.push_back(static_cast<int32_t>(bits % vocabulary));
    result.targets.push_back(i % 5 == 4 ? kIgnoredTarget
                                        : static_cast<int32_t>((bits >> 32) % vocabulary));
  }
  return result;
}

TestBatch SequenceOf(const TestBatch& batch, int64_t index) {
  const auto begin = index * batch.sequence;
  const auto end = begin + batch.sequence;
  return {1,
          batch.sequence,
          {batch.tokens.begin() + begin, batch.tokens.begin() + end},
          {batch.targets.begin() + begin, batch.targets.begin() + end}};
}

GuardedBuffer::GuardedBuffer(Device& device, int64_t bytes)
    : buffer_(Allocate(device, 2 * bytes + 64)), bytes_(bytes) {
  Scribble();
}

void GuardedBuffer::Scribble() {
  std::memset(buffer_.data(), std::to_integer<int>(kScribble),
              static_cast<size_t>(buffer_.bytes()));
}

bool GuardedBuffer::IntactFrom(int64_t used) const {
  for (int64_t i = used; i < buffer_.bytes(); ++i) {
    if (buffer_.data()[i] != kScribble) return false;
  }
  return true;
}

SmallModel::SmallModel(const ModelSpec& model, Precision precision,
                       std::unique_ptr<Kernels> kernels)
    : model_(model),
      precision_(precision),
      units_(MakeUnits(model)),
      device_(MakeCpuDevice({})),
      stream_(device_->NewStream("compute")),
      kernels_(std::move(kernels)),
      loss_(Allocate(*device_, sizeof(LossSums))) {
  for (const UnitSpec& unit : units_) {
    if (unit.kind != UnitKind::kTied) {
      computes_.push_back(MakeUnitCompute(model, unit, precision));
    }
    parameters_.push_back(Allocate(*device_, unit.flat_elements * BytesOf(precision)));
    gradients_.push_back(Allocate(*device_, unit.flat_elements * 4));
  }
  next_sum_.assign(computes_.size(), GradientSum::kContinues);
}

void SmallModel::SetParameters(
    const std::function<float(const std::string& name, int64_t index)>& value) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (const ParameterSpec& parameter : units_[unit].parameters) {
      std::vector<float> values;
      for (int64_t i = 0; i < parameter.elements; ++i) values.push_back(value(parameter.name, i));
      const ElementType type = ComputeType(precision_);
      WriteFloats(values, {parameters_[unit].data() + parameter.offset * BytesOf(type), type, 1,
                           parameter.elements});
    }
  }
}

void SmallModel::ClearGradients() {
  next_sum_.assign(computes_.size(), GradientSum::kContinues);
  for (Buffer& buffer : gradients_) {
    if (buffer.bytes() > 0) std::memset(buffer.data(), 0, static_cast<size_t>(buffer.bytes()));
  }
}

void SmallModel::ScribbleGradients() {
  next_sum_.assign(computes_.size(), GradientSum::kBegins);
  for (Buffer& buffer : gradients_) {
    if (buffer.bytes() > 0) std::memset(buffer.data(), 0xff, static_cast<size_t>(buffer.bytes()));
  }
}

InFlight SmallModel::Launch(const TestBatch& batch, int64_t planned_batch) {
  InFlight flight;
  flight.batch = batch;
  int64_t workspace_bytes = 0;
  for (int unit = 0; unit < num_compute_units(); ++unit) {
    const int64_t activation = ActivationBytes(planned_batch, batch.sequence);
    flight.y.emplace_back(*device_, activation);
    flight.dx.emplace_back(*device_, activation);
    flight.saved.emplace_back(*device_, Saved(unit, planned_batch, batch.sequence).bytes);
    workspace_bytes =
        std::max(workspace_bytes, Workspace(unit, planned_batch, batch.sequence).bytes);
  }
  if (workspace_.bytes() < workspace_bytes) workspace_ = GuardedBuffer(*device_, workspace_bytes);
  return flight;
}

void SmallModel::Forward(InFlight& flight, int unit, Mode mode) {
  UnitArguments arguments = Arguments(flight, unit);
  if (mode == Mode::kDiscard) arguments.saved = nullptr;
  if (mode == Mode::kRecompute) {
    arguments.y = {};
    arguments.loss = nullptr;
  }
  arguments.evaluate = mode == Mode::kEvaluate;
  arguments.dy = {};
  arguments.dx = {};
  arguments.gradients = nullptr;
  arguments.tied_gradients = nullptr;
  computes_[static_cast<size_t>(unit)]->Forward(arguments, *kernels_, *stream_);
  Finish(flight, unit);
}

void SmallModel::BackwardInput(InFlight& flight, int unit) {
  UnitArguments arguments = Arguments(flight, unit);
  arguments.y = {};
  arguments.gradients = nullptr;
  arguments.tied_gradients = nullptr;
  computes_[static_cast<size_t>(unit)]->BackwardInput(arguments, *kernels_, *stream_);
  Finish(flight, unit);
}

void SmallModel::BackwardWeight(InFlight& flight, int unit) {
  UnitArguments arguments = Arguments(flight, unit);
  arguments.y = {};
  arguments.dx = {};
  arguments.gradient_sum = arguments.tied_gradient_sum =
      std::exchange(next_sum_[static_cast<size_t>(unit)], GradientSum::kContinues);
  computes_[static_cast<size_t>(unit)]->BackwardWeight(arguments, *kernels_, *stream_);
  Finish(flight, unit);
}

void SmallModel::ForwardAll(InFlight& flight, Mode mode) {
  for (int unit = 0; unit < num_compute_units(); ++unit) Forward(flight, unit, mode);
}

void SmallModel::BackwardAll(InFlight& flight) {
  for (int unit = num_compute_units() - 1; unit >= 0; --unit) {
    BackwardInput(flight, unit);
    BackwardWeight(flight, unit);
  }
}

std::vector<float> SmallModel::Gradient(const std::string& name) const {
  std::vector<float> sum;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (const ParameterSpec& parameter : units_[unit].parameters) {
      if (parameter.name != name) continue;
      sum.resize(static_cast<size_t>(parameter.elements));
      const float* values = gradients(static_cast<int>(unit)) + parameter.offset;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
  }
  return sum;
}

std::vector<float> SmallModel::ParameterGradients() const {
  std::vector<float> all;
  for (const UnitSpec& unit : units_) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::vector<float> values = Gradient(parameter.name);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

std::vector<float> SmallModel::AllGradients() const {
  std::vector<float> all;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const float* values = gradients(static_cast<int>(unit));
    all.insert(all.end(), values, values + units_[unit].flat_elements);
  }
  return all;
}

std::vector<float> SmallModel::Logits(const InFlight& flight) const {
  const int head = num_compute_units() - 1;
  const TensorSlice slice = Saved(head, flight.batch.batch, flight.batch.sequence).Find("logits");
  return ReadFloats(
      {flight.saved.back().data() + slice.offset_bytes, slice.type, 1, slice.elements});
}

float* SmallModel::gradients(int unit) const {
  return reinterpret_cast<float*>(gradients_[static_cast<size_t>(unit)].data());
}

BufferLayout SmallModel::Saved(int unit, int64_t batch, int64_t sequence) const {
  return SavedLayout(model_, units_[static_cast<size_t>(unit)], batch, sequence, precision_);
}

BufferLayout SmallModel::Workspace(int unit, int64_t batch, int64_t sequence) const {
  return WorkspaceLayout(model_, units_[static_cast<size_t>(unit)], batch, sequence, precision_);
}

int64_t SmallModel::ActivationBytes(int64_t batch, int64_t sequence) const {
  return batch * sequence * model_.hidden_size * BytesOf(precision_);
}

// All that an engine could hand over; the workspace holds nothing from before.
UnitArguments SmallModel::Arguments(InFlight& flight, int unit) {
  workspace_.Scribble();
  const auto index = static_cast<size_t>(unit);
  const bool first = unit == 0;
  const bool last = unit == num_compute_units() - 1;
  UnitArguments arguments;
  arguments.batch = flight.batch.batch;
  arguments.sequence = flight.batch.sequence;
  arguments.parameters = parameters_[index].data();
  arguments.gradients = gradients(unit);
  if (units_[index].uses.size() > 1) {
    arguments.tied_parameters = parameters(units_[index].uses[1]);
    arguments.tied_gradients = gradients(units_[index].uses[1]);
  }
  if (first) arguments.tokens = Integers(flight.batch.tokens);
  if (last) arguments.targets = Integers(flight.batch.targets);
  if (!first) arguments.x = Activation(flight.batch, flight.y[index - 1]);
  if (!first) arguments.dx = Activation(flight.batch, flight.dx[index]);
  if (!last) arguments.y = Activation(flight.batch, flight.y[index]);
  if (!last) arguments.dy = Activation(flight.batch, flight.dx[index + 1]);
  arguments.saved = flight.saved[index].data();
  arguments.workspace = workspace_.data();
  if (last) arguments.loss = loss();
  arguments.dropout = {.rate = dropout_, .seed = 3, .site = DropoutSite(unit)};
  return arguments;
}

Tensor SmallModel::Activation(const TestBatch& batch, const GuardedBuffer& buffer) const {
  return {buffer.data(), ComputeType(precision_), batch.batch * batch.sequence, model_.hidden_size};
}

// Nothing was written outside what the tables give for this micro-batch.
void SmallModel::Finish(const InFlight& flight, int unit) {
  EXPECT_TRUE(stream_->Synchronize().ok());
  const auto index = static_cast<size_t>(unit);
  const auto [batch, sequence] = std::pair(flight.batch.batch, flight.batch.sequence);
  EXPECT_TRUE(flight.saved[index].IntactFrom(Saved(unit, batch, sequence).bytes)) << unit;
  EXPECT_TRUE(workspace_.IntactFrom(Workspace(unit, batch, sequence).bytes)) << unit;
  EXPECT_TRUE(flight.y[index].IntactFrom(ActivationBytes(batch, sequence))) << unit;
  EXPECT_TRUE(flight.dx[index].IntactFrom(ActivationBytes(batch, sequence))) << unit;
}

std::vector<float> ReadFloats(const Tensor& tensor) {
  std::vector<float> values;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    values.push_back(tensor.type == ElementType::kFp32 ? tensor.as<float>()[i]
                                                       : FromBf16(tensor.as<uint16_t>()[i]));
  }
  return values;
}

void WriteFloats(const std::vector<float>& values, const Tensor& tensor) {
  CHECK(static_cast<int64_t>(values.size()) == tensor.elements());
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == ElementType::kFp32) {
      tensor.as<float>()[i] = values[i];
    } else {
      tensor.as<uint16_t>()[i] = ToBf16(values[i]);
    }
  }
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / std::sqrt(norm);
}

}  // namespace esteira
