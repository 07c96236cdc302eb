// Checkpoints as folders: their names, which of them are whole, and the tensors in them. Reads
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

namespace esteira {

inline constexpr char kIndexName[] = "model.safetensors.index.json";

// "step-00000200", and the name under which it is written: ".tmp-step-00000200".
std::string StepFolderName(int64_t step);
std::string TemporaryStepFolderName(int64_t step);
// "model-00001-of-00004.safetensors": number from 1. `prefix` is model or optimizer.
std::string ShardFileName(absl::string_view prefix, int number, int count);
// The index file: which file holds which tensor.
std::string PrintIndex(const std::map<std::string, std::string>& file_of_tensor,
                       int64_t total_bytes);

struct CheckpointEntry {
  std::string path;
  Manifest manifest;
};

// The checkpoints in `directory`, newest first: folders step-* with a readable manifest whose files
// all have their sizes. Digests are not checked. A directory that is not there holds none.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(FileSystem& files,
                                                             const std::string& directory);

// The manifest of a folder. NotFound when there is none: the folder is not a checkpoint.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& folder);
// Every file of the manifest has its size. DataLoss names each that has not.
absl::Status VerifySizes(FileSystem& files, const std::string& folder, const Manifest& manifest);
// Every file has its size and digest; reads all of them in pieces. DataLoss names each that has
// not.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& folder);

// The header of a safetensors file. Errors name the path.
absl::StatusOr<SafetensorsFile> ReadSafetensorsHeader(FileSystem& files, const std::string& path);

// The tensors of a folder: a checkpoint's weights (or optimizer state), an export's, or any folder
// of Hugging Face's. Opened once, immutable. Not thread-safe only as far as `files` is not.
class TensorFolder {
 public:
  // By kIndexName, or else model.safetensors. `files` outlives it.
  static absl::StatusOr<TensorFolder> OpenModel(FileSystem& files, const std::string& folder);
  // The optimizer-*.safetensors of a checkpoint.
  static absl::StatusOr<TensorFolder> OpenOptimizer(FileSystem& files, const std::string& folder);

  struct Location {
    std::string file;
    int64_t offset = 0;  // of the tensor's first byte in the file
    TensorEntry entry;
  };
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  // NotFound names the tensor and the folder; DataLoss when its shape is another.
  absl::StatusOr<Location> Find(const std::string& name, const std::vector<int64_t>& shape) const;
  // The whole tensor as fp32 (stored as fp32 or bf16), in pieces.
  absl::Status ReadFp32(const Location& location, std::span<float> values) const;

 private:
  TensorFolder(FileSystem& files, std::string folder)
      : files_(&files), folder_(std::move(folder)) {}
  absl::Status AddFile(const std::string& name);

  FileSystem* files_;
  std::string folder_;
  std::map<std::string, Location> tensors_;
};

}  // namespace esteira
