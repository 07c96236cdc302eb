// What can be done with checkpoints where they lie; none of it needs a cluster, but for the list of
// a job's.
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands.h"
#include "client/render.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/comparison.h"
#include "common/checkpoint/export.h"

namespace esteira {
namespace {

constexpr ExitCode kExitDifferent = kExitJobFailed;

// The name in the pointer file, or empty.
std::string LatestIn(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::string> text = files.Read(absl::StrCat(directory, "/", kLatestName));
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

void PrintFolders(const std::vector<StepFolder>& folders, const std::string& latest) {
  std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "STATE", "PATH"}};
  for (const StepFolder& folder : folders) {
    const bool is_latest = absl::EndsWith(folder.path, "/" + latest) && !latest.empty();
    rows.push_back({absl::StrCat(folder.step),
                    folder.manifest.ok() ? FormatBytes(folder.manifest->total_bytes()) : "-",
                    !folder.manifest.ok() ? std::string(folder.manifest.status().message())
                    : is_latest           ? "whole, latest"
                                          : "whole",
                    folder.path});
  }
  PrintTable(rows, std::cout);
}

void PrintFoldersAsJson(const std::vector<StepFolder>& folders, const std::string& latest) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepFolder& folder : folders) {
    nlohmann::json entry = {{"path", folder.path}, {"step", folder.step}};
    if (folder.manifest.ok()) {
      entry["bytes"] = folder.manifest->total_bytes();
      entry["latest"] = !latest.empty() && absl::EndsWith(folder.path, "/" + latest);
    } else {
      entry["fault"] = folder.manifest.status().message();
    }
    list.push_back(std::move(entry));
  }
  std::cout << nlohmann::json{{"checkpoints", list}}.dump(2, ' ', false,
                                                          nlohmann::json::error_handler_t::replace)
            << "\n";
}

// The folders that VerifyFolders looks at: `path` itself, or the checkpoints in it.
absl::StatusOr<std::vector<std::string>> FoldersToVerify(FileSystem& files,
                                                         const std::string& path) {
  if (!files.Exists(path)) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (files.Exists(absl::StrCat(path, "/", kManifestName))) return std::vector<std::string>{path};
  ASSIGN_OR_RETURN(const std::vector<StepFolder> folders, ListStepFolders(files, path));
  if (folders.empty()) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " is no checkpoint and holds none: it has neither ",
                                            kManifestName, " nor a folder step-*"));
  }
  std::vector<std::string> paths;
  paths.reserve(folders.size());
  for (const StepFolder& folder : folders) paths.push_back(folder.path);
  return paths;
}

std::string Verdict(const TensorComparison& tensor) {
  switch (tensor.verdict) {
    case TensorVerdict::kEqual: return "equal";
    case TensorVerdict::kValues:
      return absl::StrFormat("differs: %d of %d elements, by %.9g at most", tensor.num_different,
                             tensor.elements, tensor.max_difference);
    case TensorVerdict::kType: return "equal values of another type";
    case TensorVerdict::kShape: return "another shape";
    case TensorVerdict::kOnlyInA: return "missing in the second";
    case TensorVerdict::kOnlyInB: return "missing in the first";
  }
  return "";
}

// "2GiB", "500MB", "1000".
absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
    ++digits;
  }
  constexpr std::pair<const char*, int64_t> kUnits[] = {{"", 1},
                                                        {"B", 1},
                                                        {"kB", 1000},
                                                        {"KiB", int64_t{1} << 10},
                                                        {"MB", 1000000},
                                                        {"MiB", int64_t{1} << 20},
                                                        {"GB", 1000000000},
                                                        {"GiB", int64_t{1} << 30},
                                                        {"TB", 1000000000000},
                                                        {"TiB", int64_t{1} << 40}};
  const std::string unit(absl::StripAsciiWhitespace(text.substr(digits)));
  int64_t number = 0;
  for (const auto& [name, factor] : kUnits) {
    int64_t bytes = 0;
    if (unit != name || !absl::SimpleAtoi(text.substr(0, digits), &number)) continue;
    if (number > 0 && !__builtin_mul_overflow(number, factor, &bytes)) return bytes;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--shard-size ", text, ": give a size from 1 byte, e.g. 500MB or 2GiB"));
}

}  // namespace

bool IsCheckpointFolder(const std::string& job_or_folder) {
  std::error_code error;
  return absl::StrContains(job_or_folder, "/") ||
         std::filesystem::is_directory(job_or_folder, error);
}

ExitCode ListCheckpointFolders(const std::string& directory, Output output) {
  RealFileSystem files;
  if (!files.Exists(directory)) {
    return ReportError(absl::NotFoundError(absl::StrCat(directory, " does not exist")));
  }
  const absl::StatusOr<std::vector<StepFolder>> folders = ListStepFolders(files, directory);
  if (!folders.ok()) return ReportError(folders.status());
  const std::string latest = LatestIn(files, directory);
  if (output == Output::kJson) {
    PrintFoldersAsJson(*folders, latest);
  } else {
    PrintFolders(*folders, latest);
  }
  return kExitOk;
}

ExitCode VerifyCheckpoints(const std::string& path) {
  RealFileSystem files;
  const absl::StatusOr<std::vector<std::string>> folders = FoldersToVerify(files, path);
  if (!folders.ok()) return ReportError(folders.status());
  absl::Status first_fault;
  for (const std::string& folder : *folders) {
    const absl::Status status = VerifyCheckpoint(files, folder);
    std::cout << folder << ": " << (status.ok() ? "whole" : std::string(status.message()))
              << std::endl;
    first_fault.Update(status);
  }
  return first_fault.ok() ? kExitOk : kExitJobFailed;
}

ExitCode DiffCheckpoints(const DiffOptions& options) {
  RealFileSystem files;
  const absl::StatusOr<std::vector<TensorComparison>> tensors =
      CompareCheckpoints(files, options.a, options.b, options.weights_only);
  if (!tensors.ok()) return ReportError(tensors.status());
  std::vector<std::vector<std::string>> rows = {{"PARAMETER", "VERDICT"}};
  size_t num_equal = 0;
  for (const TensorComparison& tensor : *tensors) {
    if (tensor.verdict == TensorVerdict::kEqual) {
      ++num_equal;
      if (!options.all) continue;
    }
    rows.push_back({tensor.name, Verdict(tensor)});
  }
  if (rows.size() > 1) PrintTable(rows, std::cout);
  std::cout << num_equal << " of " << tensors->size() << " tensors are equal to the bit.\n";
  return num_equal == tensors->size() ? kExitOk : kExitDifferent;
}

ExitCode ExportCheckpoint(const ExportCommandOptions& options) {
  RealFileSystem files;
  const absl::StatusOr<ExportResult> result = [&]() -> absl::StatusOr<ExportResult> {
    ExportOptions how;
    if (!options.dtype.empty()) {
      ASSIGN_OR_RETURN(how.precision, ParsePrecision(options.dtype));
    }
    ASSIGN_OR_RETURN(how.shard_bytes, ParseBytes(options.shard_size));
    return ExportWeights(files, options.folder, options.out, how);
  }();
  if (!result.ok()) return ReportError(result.status());
  std::cout << "Exported " << result->from << " to " << options.out << ": "
            << FormatBytes(result->bytes) << " in " << result->num_files
            << (result->num_files == 1 ? " file.\n" : " files.\n");
  return kExitOk;
}

}  // namespace esteira
