#include "worker/checkpoint/reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/tokenizer_files.h"

namespace esteira {
absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(FileSystem& files,
                                                                         const std::string& path) {
  ASSIGN_OR_RETURN(const std::string folder, FindModelFolder(files, path));
  const auto path_of = [&](const char* name) { return absl::StrCat(folder, "/", name); };
  if (files.Exists(path_of(kManifestName))) RETURN_IF_ERROR(VerifyCheckpoint(files, folder));
  ASSIGN_OR_RETURN(const std::string config_text, files.Read(path_of(kModelConfigName)));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_text));
  ASSIGN_OR_RETURN(TensorFolder weights, TensorFolder::OpenModel(files, folder));
  std::unique_ptr<CheckpointReader> reader(
      new CheckpointReader(folder, config, std::move(weights)));
  if (files.Exists(path_of(kTrainerStateName))) {
    ASSIGN_OR_RETURN(const std::string text, files.Read(path_of(kTrainerStateName)));
    ASSIGN_OR_RETURN(reader->trainer_state_, ParseTrainerState(text));
  }
  if (files.Exists(path_of(kTokenizerName))) {
    ASSIGN_OR_RETURN(const std::string text, files.Read(path_of(kTokenizerName)));
    ASSIGN_OR_RETURN(reader->tokenizer_, ParseTokenizerName(text));
  }
  return reader;
}

absl::Status CheckpointReader::LoadUnit(const UnitSpec& unit, std::span<float> flat) const {
  CHECK(static_cast<int64_t>(flat.size()) >= unit.flat_elements);
  std::fill(flat.begin(), flat.end(), 0.0F);
  for (const ParameterSpec& parameter : unit.parameters) {
    ASSIGN_OR_RETURN(const TensorFolder::Location location,
                     weights_.Find(parameter.name, parameter.shape));
    RETURN_IF_ERROR(
        weights_.ReadFp32(location, flat.subspan(static_cast<size_t>(parameter.offset),
                                                 static_cast<size_t>(parameter.elements))));
  }
  return absl::OkStatus();
}

}  // namespace esteira
