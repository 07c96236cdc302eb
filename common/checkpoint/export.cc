#include "common/checkpoint/export.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_file.h"
#include "common/checkpoint/tokenizer_files.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;

// The tensors of one file.
struct Shard {
  std::vector<TensorEntry> entries;
  int64_t bytes = 0;
};

std::vector<Shard> Divide(const ModelSpec& model, ElementType type, int64_t shard_bytes) {
  std::vector<Shard> shards;
  for (const UnitSpec& unit : MakeUnits(model)) {
    if (unit.owner >= 0) continue;  // the other end of the tied table holds the same parameter
    for (const ParameterSpec& parameter : unit.parameters) {
      const int64_t bytes = parameter.elements * BytesOf(type);
      if (shards.empty() || shards.back().bytes + bytes > shard_bytes) shards.emplace_back();
      shards.back().entries.push_back({parameter.name, type, parameter.shape});
      shards.back().bytes += bytes;
    }
  }
  for (Shard& shard : shards) PlaceTensors(shard.entries);
  return shards;
}

class Export {
 public:
  Export(FileSystem& files, std::string folder, ModelConfig config, TensorFolder weights,
         TensorFolder states)
      : files_(files),
        folder_(std::move(folder)),
        config_(config),
        weights_(std::move(weights)),
        states_(std::move(states)) {}

  // Everything, into `to`, which is there and empty.
  absl::Status Write(const std::string& to, int64_t shard_bytes, ExportResult& result) {
    const ElementType type = ComputeType(config_.precision);
    const std::vector<Shard> shards = Divide(config_.model, type, shard_bytes);
    std::map<std::string, std::string> file_of_tensor;
    result.num_files = static_cast<int>(shards.size());
    for (int i = 0; i < result.num_files; ++i) {
      const std::string name = result.num_files == 1
                                   ? std::string(kSingleFileName)
                                   : ShardFileName("model", i + 1, result.num_files);
      const Shard& shard = shards[static_cast<size_t>(i)];
      RETURN_IF_ERROR(WriteShard(to, name, shard));
      for (const TensorEntry& entry : shard.entries) file_of_tensor[entry.name] = name;
      result.bytes += shard.bytes;
    }
    if (result.num_files > 1) {
      RETURN_IF_ERROR(WriteFileAtomically(files_, absl::StrCat(to, "/", kIndexName),
                                          PrintIndex(file_of_tensor, result.bytes)));
    }
    RETURN_IF_ERROR(WriteFileAtomically(files_, absl::StrCat(to, "/", kModelConfigName),
                                        PrintModelConfig(config_)));
    for (const char* name : {kTokenizerName, kTokenizerConfigName}) {
      const std::string path = absl::StrCat(folder_, "/", name);
      if (!files_.Exists(path)) continue;
      ASSIGN_OR_RETURN(const std::string text, files_.Read(path));
      RETURN_IF_ERROR(WriteFileAtomically(files_, absl::StrCat(to, "/", name), text));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteShard(const std::string& to, const std::string& name, const Shard& shard) {
    TensorFile file(files_, to, name, shard.entries);
    std::vector<float> piece;
    for (const TensorEntry& entry : shard.entries) {
      const bool has_master = !states_.tensors().empty();
      const TensorFolder& from = has_master ? states_ : weights_;
      ASSIGN_OR_RETURN(
          const TensorFolder::Location location,
          from.Find(has_master ? entry.name + kStateSuffixes[0] : entry.name, entry.shape));
      for (int64_t first = 0; first < entry.elements(); first += kPieceElements) {
        piece.resize(static_cast<size_t>(std::min(kPieceElements, entry.elements() - first)));
        RETURN_IF_ERROR(from.ReadFp32(location, piece, first));
        file.Append(piece, entry.type);
      }
    }
    return file.Finish().status();
  }

  FileSystem& files_;
  const std::string folder_;
  const ModelConfig config_;
  const TensorFolder weights_, states_;
};

absl::Status CheckFree(FileSystem& files, const std::string& out) {
  if (!files.Exists(out)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(out));
  if (names.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(out, " is there and holds ", names.front(),
                                               names.size() > 1 ? " and more" : "",
                                               ": name a folder that is empty or not there"));
}

// Beside `out`, so that a rename can give it its name.
std::string TemporaryName(const std::string& out) {
  const size_t slash = out.find_last_of('/');
  const std::string name = slash == std::string::npos ? out : out.substr(slash + 1);
  return absl::StrCat(slash == std::string::npos ? "" : out.substr(0, slash + 1), ".tmp-export-",
                      name);
}

}  // namespace

absl::StatusOr<ExportResult> ExportWeights(FileSystem& files, const std::string& folder,
                                           const std::string& out, const ExportOptions& options) {
  const std::string to(absl::StripSuffix(out, "/"));
  if (to.empty()) return absl::InvalidArgumentError("the folder to export to has no name");
  RETURN_IF_ERROR(CheckFree(files, to));
  ExportResult result;
  ASSIGN_OR_RETURN(result.from, FindModelFolder(files, folder));
  if (files.Exists(absl::StrCat(result.from, "/", kManifestName))) {
    RETURN_IF_ERROR(VerifyCheckpoint(files, result.from));
  }
  ASSIGN_OR_RETURN(const std::string text,
                   files.Read(absl::StrCat(result.from, "/", kModelConfigName)));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text));
  config.precision = options.precision.value_or(config.precision);
  ASSIGN_OR_RETURN(TensorFolder weights, TensorFolder::OpenModel(files, result.from));
  ASSIGN_OR_RETURN(TensorFolder states, TensorFolder::OpenOptimizer(files, result.from));
  const std::string temporary = TemporaryName(to);
  const absl::Status status = [&]() -> absl::Status {
    RETURN_IF_ERROR(files.RemoveAll(temporary));
    RETURN_IF_ERROR(files.CreateDirectories(temporary));
    RETURN_IF_ERROR(Export(files, result.from, config, std::move(weights), std::move(states))
                        .Write(temporary, options.shard_bytes, result));
    RETURN_IF_ERROR(CheckFree(files, to));
    RETURN_IF_ERROR(files.RemoveAll(to));  // empty, and in the way of a rename
    return files.Rename(temporary, to);
  }();
  if (!status.ok()) files.RemoveAll(temporary).IgnoreError();
  RETURN_IF_ERROR(status);
  return result;
}

}  // namespace esteira
