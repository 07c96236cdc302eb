// Checkpoints as folders: their names, which of them are whole, and the tensors in them. Reads
// only.
#pragma once

#include <array>
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

inline constexpr char kSingleFileName[] = "model.safetensors";  // of a model in one file
inline constexpr char kIndexName[] = "model.safetensors.index.json";
// In a checkpoint directory: the name of the folder that was completed last, as one line.
inline constexpr char kLatestName[] = "latest";
// The tensors of a parameter in the optimizer files: NAME and one of these.
inline constexpr std::array<const char*, 3> kStateSuffixes = {".master", ".exp_avg", ".exp_avg_sq"};

// "step-00000200", and the name under which it is written: ".tmp-step-00000200".
std::string StepFolderName(int64_t step);
std::string TemporaryStepFolderName(int64_t step);
// "model-00001-of-00004.safetensors": number from 1. `prefix` is model or optimizer.
std::string ShardFileName(absl::string_view prefix, int number, int count);
// The index file: which file holds which tensor.
std::string PrintIndex(const std::map<std::string, std::string>& file_of_tensor,
                       int64_t total_bytes);

// A folder step-* of a checkpoint directory, whatever it holds.
struct StepFolder {
  std::string path;
  int64_t step = 0;                   // by its name
  absl::StatusOr<Manifest> manifest;  // or why it is no whole checkpoint: digests are not checked
};

// All of them, newest first. A directory that is not there holds none.
absl::StatusOr<std::vector<StepFolder>> ListStepFolders(FileSystem& files,
                                                        const std::string& directory);

struct CheckpointEntry {
  std::string path;
  Manifest manifest;
};

// Those that are whole, as far as sizes tell.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(FileSystem& files,
                                                             const std::string& directory);

// The manifest of a folder. NotFound when there is none: the folder is not a checkpoint.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& folder);
// Every file of the manifest has its size. DataLoss names each that has not.
absl::Status VerifySizes(FileSystem& files, const std::string& folder, const Manifest& manifest);
// What is wrong with one file of a folder, or empty: reads all of it in pieces.
std::string DigestFault(FileSystem& files, const std::string& folder, const ManifestFile& file);
// Every file has its size and digest; reads all of them in pieces. DataLoss names each that has
// not.
absl::Status VerifyCheckpoint(FileSystem& files, const std::string& folder);

// The folder that holds the model: `path` when it has a config.json, else the newest whole
// checkpoint in it. NotFound when there is neither.
absl::StatusOr<std::string> FindModelFolder(FileSystem& files, const std::string& path);

// The header of a safetensors file. Errors name the path.
absl::StatusOr<SafetensorsFile> ReadSafetensorsHeader(FileSystem& files, const std::string& path);

// The tensors of a folder: a checkpoint's weights (or optimizer state), an export's, or any folder
// of Hugging Face's. Opened once, immutable. Not thread-safe only as far as `files` is not.
class TensorFolder {
 public:
  // By kIndexName, or else model.safetensors. `files` outlives it.
  static absl::StatusOr<TensorFolder> OpenModel(FileSystem& files, const std::string& folder);
  // The optimizer-*.safetensors of a checkpoint; of a folder without a manifest, nothing.
  static absl::StatusOr<TensorFolder> OpenOptimizer(FileSystem& files, const std::string& folder);

  struct Location {
    std::string file;
    int64_t offset = 0;  // of the tensor's first byte in the file
    TensorEntry entry;
  };
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  // NotFound names the tensor and the folder; DataLoss when its shape is another.
  absl::StatusOr<Location> Find(const std::string& name, const std::vector<int64_t>& shape) const;
  // Elements of the tensor from `first` on as fp32 (stored as fp32 or bf16), in pieces. They lie
  // within the tensor.
  absl::Status ReadFp32(const Location& location, std::span<float> values, int64_t first = 0) const;

 private:
  TensorFolder(FileSystem& files, std::string folder)
      : files_(&files), folder_(std::move(folder)) {}
  absl::Status AddFile(const std::string& name);

  FileSystem* files_;
  std::string folder_;
  std::map<std::string, Location> tensors_;
};

}  // namespace esteira
