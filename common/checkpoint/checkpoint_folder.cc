#include "common/checkpoint/checkpoint_folder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr absl::string_view kStepPrefix = "step-";
constexpr int64_t kPieceBytes = int64_t{1} << 20;

bool IsStepFolder(const std::string& name) {
  int64_t step = 0;
  return absl::StartsWith(name, kStepPrefix) &&
         absl::SimpleAtoi(absl::string_view(name).substr(kStepPrefix.size()), &step) && step >= 0 &&
         name == StepFolderName(step);
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

std::string DigestFault(FileSystem& files, const std::string& folder, const ManifestFile& file) {
  std::string fault = SizeFault(files, folder, file);
  if (!fault.empty()) return fault;
  const absl::StatusOr<std::string> digest = DigestOf(files, folder + "/" + file.name, file.bytes);
  if (!digest.ok()) return absl::StrCat(file.name, ": ", digest.status().message());
  return *digest == file.sha256
             ? ""
             : absl::StrCat(file.name, " has another digest: its bytes have changed");
}

absl::Status FaultsToStatus(const std::string& folder, std::vector<std::string> faults) {
  faults.erase(std::remove(faults.begin(), faults.end(), ""), faults.end());
  if (faults.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("checkpoint ", folder, " is damaged: ", absl::StrJoin(faults, "; ")));
}

}  // namespace

std::string StepFolderName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::string TemporaryStepFolderName(int64_t step) { return ".tmp-" + StepFolderName(step); }

std::string ShardFileName(absl::string_view prefix, int number, int count) {
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", prefix, number, count);
}

std::string PrintIndex(const std::map<std::string, std::string>& file_of_tensor,
                       int64_t total_bytes) {
  return PrintJson({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of_tensor}});
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(FileSystem& files,
                                                             const std::string& directory) {
  std::vector<CheckpointEntry> checkpoints;
  if (!files.Exists(directory)) return checkpoints;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (!IsStepFolder(name)) continue;
    const std::string path = absl::StrCat(directory, "/", name);
    absl::StatusOr<Manifest> manifest = ReadManifest(files, path);
    if (!manifest.ok() || !VerifySizes(files, path, *manifest).ok()) continue;
    checkpoints.push_back({path, *std::move(manifest)});
  }
  std::stable_sort(checkpoints.begin(), checkpoints.end(),
                   [](const CheckpointEntry& a, const CheckpointEntry& b) {
                     return a.manifest.step > b.manifest.step;
                   });
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

}  // namespace esteira
