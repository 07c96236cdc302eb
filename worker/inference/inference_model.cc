#include "worker/inference/inference_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

constexpr Precision kPrecision = Precision::kFp32;

Tensor Rows(const Buffer& buffer, ElementType type, int64_t rows, int64_t columns) {
  return {buffer.data(), type, rows, columns};
}

void CopyTokens(std::span<const int32_t> tokens, const Buffer& buffer) {
  std::memcpy(buffer.data(), tokens.data(), tokens.size_bytes());
}

}  // namespace

InferenceModel::InferenceModel(const ModelSpec& spec, Device& device, Kernels& kernels)
    : spec_(spec),
      device_(device),
      kernels_(kernels),
      units_(MakeUnits(spec)),
      weights_(units_.size()) {
  for (int unit = 0; unit < NumComputeUnits(spec_); ++unit) {
    computes_.push_back(MakeUnitCompute(spec_, units_[static_cast<size_t>(unit)], kPrecision));
  }
  stream_ = device_.NewStream("inference");
}

absl::StatusOr<std::unique_ptr<InferenceModel>> InferenceModel::Load(const CheckpointReader& reader,
                                                                     Device& device,
                                                                     Kernels& kernels) {
  std::unique_ptr<InferenceModel> model(new InferenceModel(reader.config().model, device, kernels));
  RETURN_IF_ERROR(model->LoadWeights(reader));
  return model;
}

absl::Status InferenceModel::LoadWeights(const CheckpointReader& reader) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const UnitSpec& spec = units_[unit];
    if (spec.owner >= 0 || spec.flat_elements == 0) continue;
    ASSIGN_OR_RETURN(weights_[unit], device_.Allocate(spec.flat_elements * BytesOf(kPrecision),
                                                      MemoryKind::kParameters));
    RETURN_IF_ERROR(
        reader.LoadUnit(spec, std::span<float>(reinterpret_cast<float*>(weights_[unit].data()),
                                               static_cast<size_t>(spec.flat_elements))));
  }
  ASSIGN_OR_RETURN(loss_, device_.Allocate(sizeof(LossSums), MemoryKind::kOther));
  ASSIGN_OR_RETURN(
      head_saved_,
      device_.Allocate(SavedLayout(spec_, units_[computes_.size() - 1], 1, 1, kPrecision).bytes,
                       MemoryKind::kOther));
  return absl::OkStatus();
}

absl::Status InferenceModel::Grow(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, MemoryKind::kWorkspace));
  return absl::OkStatus();
}

absl::Status InferenceModel::Reserve(int64_t batch, int64_t sequence) {
  const int64_t tokens_N = batch * sequence;
  const int64_t hidden_bytes = tokens_N * spec_.hidden_size * BytesOf(kPrecision);
  int64_t workspace_bytes = 0;
  for (size_t unit = 0; unit < computes_.size(); ++unit) {
    workspace_bytes = std::max(
        workspace_bytes, WorkspaceLayout(spec_, units_[unit], batch, sequence, kPrecision).bytes);
  }
  RETURN_IF_ERROR(Grow(tokens_, tokens_N * BytesOf(ElementType::kInt32)));
  RETURN_IF_ERROR(Grow(targets_, tokens_N * BytesOf(ElementType::kInt32)));
  RETURN_IF_ERROR(Grow(x_, hidden_bytes));
  RETURN_IF_ERROR(Grow(y_, hidden_bytes));
  return Grow(workspace_, workspace_bytes);
}

UnitArguments InferenceModel::Arguments(int unit, int64_t batch, int64_t sequence) const {
  const int64_t tokens_N = batch * sequence;
  UnitArguments arguments;
  arguments.batch = batch;
  arguments.sequence = sequence;
  arguments.parameters = weights_[static_cast<size_t>(unit)].data();
  if (spec_.tie_embeddings) {
    arguments.tied_parameters = weights_[static_cast<size_t>(TiedEmbeddingEnd(spec_))].data();
  }
  arguments.tokens = Rows(tokens_, ElementType::kInt32, tokens_N, 1);
  arguments.targets = Rows(targets_, ElementType::kInt32, tokens_N, 1);
  arguments.x = Rows(x_, ComputeType(kPrecision), tokens_N, spec_.hidden_size);
  arguments.y = Rows(y_, ComputeType(kPrecision), tokens_N, spec_.hidden_size);
  arguments.workspace = workspace_.data();
  arguments.evaluate = true;
  return arguments;
}

void InferenceModel::RunBody(int64_t batch, int64_t sequence) {
  for (int unit = 0; unit + 1 < NumComputeUnits(spec_); ++unit) {
    computes_[static_cast<size_t>(unit)]->Forward(Arguments(unit, batch, sequence), kernels_,
                                                  *stream_);
    std::swap(x_, y_);
  }
}

absl::StatusOr<std::vector<float>> InferenceModel::NextLogits(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  CHECK(count >= 1 && count <= spec_.max_sequence_length);
  RETURN_IF_ERROR(Reserve(1, count));
  CopyTokens(tokens, tokens_);
  RunBody(1, count);

  // The head on the last row alone, without a target: its logits stay in `saved`.
  const int head = NumComputeUnits(spec_) - 1;
  UnitArguments arguments = Arguments(head, 1, 1);
  arguments.x.data += (count - 1) * spec_.hidden_size * BytesOf(kPrecision);
  *arguments.targets.as<int32_t>() = kIgnoredTarget;
  arguments.saved = head_saved_.data();
  computes_.back()->Forward(arguments, kernels_, *stream_);
  RETURN_IF_ERROR(stream_->Synchronize());
  const BufferLayout layout = SavedLayout(spec_, units_[computes_.size() - 1], 1, 1, kPrecision);
  const auto* logits =
      reinterpret_cast<const float*>(head_saved_.data() + layout.Find("logits").offset_bytes);
  return std::vector<float>(logits, logits + spec_.vocab_size);
}

absl::StatusOr<LossSums> InferenceModel::Loss(int64_t sequence, std::span<const int32_t> inputs,
                                              std::span<const int32_t> targets) {
  const int64_t batch = static_cast<int64_t>(inputs.size()) / sequence;
  CHECK(batch * sequence == static_cast<int64_t>(inputs.size()) && inputs.size() == targets.size());
  RETURN_IF_ERROR(Reserve(batch, sequence));
  CopyTokens(inputs, tokens_);
  CopyTokens(targets, targets_);
  *reinterpret_cast<LossSums*>(loss_.data()) = {};
  RunBody(batch, sequence);
  UnitArguments arguments = Arguments(NumComputeUnits(spec_) - 1, batch, sequence);
  arguments.loss = reinterpret_cast<LossSums*>(loss_.data());
  computes_.back()->Forward(arguments, kernels_, *stream_);
  RETURN_IF_ERROR(stream_->Synchronize());
  return *arguments.loss;
}

}  // namespace esteira
