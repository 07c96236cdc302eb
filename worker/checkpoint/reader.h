#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/trainer_state.h"
#include "common/plan/model_spec.h"

namespace esteira {

// A model in a folder: a checkpoint, an export, or Hugging Face's. Says what it is and loads
// weights; files are read in pieces. Immutable. Does not write.
class CheckpointReader {
 public:
  // `path`: the folder, or a checkpoint directory, whose newest whole checkpoint is then taken. A
  // folder with a manifest is verified first, digests included: DataLoss names what is damaged.
  // NotFound when there is no model. `files` outlives the reader.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(FileSystem& files,
                                                                const std::string& path);

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  // Absent in an export.
  const std::optional<TrainerState>& trainer_state() const { return trainer_state_; }
  // As in a job file; absent when the folder says nothing of a tokenizer.
  const std::optional<std::string>& tokenizer() const { return tokenizer_; }

  // The weights of a unit into its flat buffer (flat_elements or more); gaps become zero.
  absl::Status LoadUnit(const UnitSpec& unit, std::span<float> flat) const;

 private:
  CheckpointReader(std::string folder, const ModelConfig& config, TensorFolder weights)
      : folder_(std::move(folder)), config_(config), weights_(std::move(weights)) {}

  std::string folder_;
  ModelConfig config_;
  TensorFolder weights_;
  std::optional<TrainerState> trainer_state_;
  std::optional<std::string> tokenizer_;
};

}  // namespace esteira
