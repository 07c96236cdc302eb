#include "common/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/model_config.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr absl::string_view kStepPrefix = "step-";
constexpr int64_t kPieceBytes = int64_t{1} << 20;

std::optional<int64_t> StepOf(const std::string& name) {
  int64_t step = 0;
  const bool is_step =
      absl::StartsWith(name, kStepPrefix) &&
      absl::SimpleAtoi(absl::string_view(name).substr(kStepPrefix.size()), &step) && step >= 0 &&
      name == StepFolderName(step);
  return is_step ? std::optional<int64_t>(step) : std::nullopt;
}

absl::StatusOr<std::string> DigestOf(FileSystem& files, const std::string& path, int64_t bytes) {
  Digest digest;
  std::vector<char> piece(static_cast<size_t>(std::min(bytes, kPieceBytes)));
  for (int64_t offset = 0; offset < bytes; offset += kPieceBytes) {
    const std::span<char> part(piece.data(),
                               static_cast<size_t>(std::min(kPieceBytes, bytes - offset)));
    RETURN_IF_ERROR(files.ReadAt(path, offset, part));
    digest.Append(absl::string_view(part.data(), part.size()));
  }
  return digest.Finish();
}

// What is wrong with one file, or empty.
std::string SizeFault(FileSystem& files, const std::string& folder, const ManifestFile& file) {
  const absl::StatusOr<int64_t> bytes = files.Size(folder + "/" + file.name);
  if (!bytes.ok()) return absl::StrCat(file.name, " is missing (", bytes.status().message(), ")");
  if (*bytes == file.bytes) return "";
  return absl::StrCat(file.name, " has ", *bytes, " bytes instead of ", file.bytes);
}

absl::Status FaultsToStatus(const std::string& folder, std::vector<std::string> faults) {
  faults.erase(std::remove(faults.begin(), faults.end(), ""), faults.end());
  if (faults.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("checkpoint ", folder, " is damaged: ", absl::StrJoin(faults, "; ")));
}

absl::StatusOr<Manifest> WholeManifest(FileSystem& files, const std::string& folder, int64_t step) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, folder));
  RETURN_IF_ERROR(VerifySizes(files, folder, manifest));
  if (manifest.step != step) {
    return absl::DataLossError(
        absl::StrCat("checkpoint ", folder, " holds step ", manifest.step, ": it was renamed"));
  }
  return manifest;
}

}  // namespace

std::string DigestFault(FileSystem& files, const std::string& folder, const ManifestFile& file) {
  std::string fault = SizeFault(files, folder, file);
  if (!fault.empty()) return fault;
  const absl::StatusOr<std::string> digest = DigestOf(files, folder + "/" + file.name, file.bytes);
  if (!digest.ok()) return absl::StrCat(file.name, ": ", digest.status().message());
  return *digest == file.sha256
             ? ""
             : absl::StrCat(file.name, " has another digest: its bytes have changed");
}

std::string StepFolderName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::string TemporaryStepFolderName(int64_t step) { return ".tmp-" + StepFolderName(step); }

std::string ShardFileName(absl::string_view prefix, int number, int count) {
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", prefix, number, count);
}

std::string PrintIndex(const std::map<std::string, std::string>& file_of_tensor,
                       int64_t total_bytes) {
  return PrintJson({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of_tensor}});
}

absl::StatusOr<std::vector<StepFolder>> ListStepFolders(FileSystem& files,
                                                        const std::string& directory) {
  std::vector<StepFolder> folders;
  if (!files.Exists(directory)) return folders;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step) continue;
    const std::string path = absl::StrCat(directory, "/", name);
    folders.push_back({path, *step, WholeManifest(files, path, *step)});
  }
  std::sort(folders.begin(), folders.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return folders;
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(FileSystem& files,
                                                             const std::string& directory) {
  ASSIGN_OR_RETURN(std::vector<StepFolder> folders, ListStepFolders(files, directory));
  std::vector<CheckpointEntry> checkpoints;
  for (StepFolder& folder : folders) {
    if (folder.manifest.ok()) checkpoints.push_back({folder.path, *std::move(folder.manifest)});
  }
  return checkpoints;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& files, const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  if (!files.Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat(folder, " is not a checkpoint: it has no ", kManifestName));
  }
  ASSIGN_OR_RETURN(const std::string text, files.Read(path));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return absl::DataLossError(
        absl::StrCat("checkpoint ", folder, ": ", manifest.status().message()));
  }
  return manifest;
}

absl::Status VerifySizes(FileSystem& files, const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> faults;
  for (const ManifestFile& file : manifest.files) faults.push_back(SizeFault(files, folder, file));
  return FaultsToStatus(folder, std::move(faults));
}

absl::Status VerifyCheckpoint(FileSystem& files, const std::string& folder) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, folder));
  std::vector<std::string> faults;
  for (const ManifestFile& file : manifest.files)
    faults.push_back(DigestFault(files, folder, file));
  return FaultsToStatus(folder, std::move(faults));
}

absl::StatusOr<std::string> FindModelFolder(FileSystem& files, const std::string& path) {
  if (!files.Exists(path)) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (files.Exists(absl::StrCat(path, "/", kModelConfigName))) return path;
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> checkpoints, ListCheckpoints(files, path));
  if (checkpoints.empty()) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " is no model and holds no checkpoint: it has neither ",
                                            kModelConfigName, " nor a whole folder step-*"));
  }
  return checkpoints.front().path;
}

}  // namespace esteira
