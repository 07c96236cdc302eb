#include <algorithm>
#include <bit>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr int64_t kPieceElements = int64_t{1} << 18;

absl::StatusOr<std::set<std::string>> FilesOfIndex(const std::string& text) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, kIndexName));
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object()) {
    return absl::DataLossError(absl::StrCat(kIndexName, ": field \"weight_map\" is not an object"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || absl::StrContains(file.get<std::string>(), "/")) {
      return absl::DataLossError(absl::StrCat(kIndexName, ": tensor ", tensor, " is in no file"));
    }
    names.insert(file.get<std::string>());
  }
  return names;
}

void WidenBf16(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16);
}

absl::StatusOr<SafetensorsFile> ReadHeader(FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t file_bytes, files.Size(path));
  std::string prefix(static_cast<size_t>(std::min(file_bytes, kSafetensorsPrefixBytes)), '\0');
  RETURN_IF_ERROR(files.ReadAt(path, 0, std::span<char>(prefix.data(), prefix.size())));
  ASSIGN_OR_RETURN(const int64_t header_bytes, SafetensorsHeaderBytes(prefix, file_bytes));
  std::string header(static_cast<size_t>(header_bytes), '\0');
  RETURN_IF_ERROR(
      files.ReadAt(path, kSafetensorsPrefixBytes, std::span<char>(header.data(), header.size())));
  return ParseSafetensorsHeader(header, file_bytes);
}

}  // namespace

absl::StatusOr<SafetensorsFile> ReadSafetensorsHeader(FileSystem& files, const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = ReadHeader(files, path);
  if (file.status().code() != absl::StatusCode::kDataLoss) return file;
  return absl::DataLossError(absl::StrCat(path, ": ", file.status().message()));
}

absl::StatusOr<TensorFolder> TensorFolder::OpenModel(FileSystem& files, const std::string& folder) {
  TensorFolder tensors(files, folder);
  const std::string index = folder + "/" + kIndexName;
  if (!files.Exists(index)) {
    if (!files.Exists(folder + "/" + kSingleFileName)) {
      return absl::NotFoundError(absl::StrCat(folder, " holds no weights: neither ", kIndexName,
                                              " nor ", kSingleFileName));
    }
    RETURN_IF_ERROR(tensors.AddFile(kSingleFileName));
    return tensors;
  }
  ASSIGN_OR_RETURN(const std::string text, files.Read(index));
  ASSIGN_OR_RETURN(const std::set<std::string> names, FilesOfIndex(text));
  for (const std::string& name : names) RETURN_IF_ERROR(tensors.AddFile(name));
  return tensors;
}

absl::StatusOr<TensorFolder> TensorFolder::OpenOptimizer(FileSystem& files,
                                                         const std::string& folder) {
  TensorFolder tensors(files, folder);
  if (!files.Exists(absl::StrCat(folder, "/", kManifestName))) return tensors;
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, folder));
  for (const ManifestFile& file : manifest.files) {
    if (absl::StartsWith(file.name, "optimizer-")) RETURN_IF_ERROR(tensors.AddFile(file.name));
  }
  return tensors;
}

absl::Status TensorFolder::AddFile(const std::string& name) {
  const std::string path = folder_ + "/" + name;
  ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensorsHeader(*files_, path));
  for (TensorEntry& entry : file.tensors) {
    const std::string tensor = entry.name;
    const int64_t offset = file.data_offset + entry.begin;
    if (!tensors_.emplace(tensor, Location{name, offset, std::move(entry)}).second) {
      return absl::DataLossError(
          absl::StrCat(path, ": tensor ", tensor, " is in another file too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorFolder::Location> TensorFolder::Find(const std::string& name,
                                                          const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(folder_, " holds no tensor ", name));
  }
  if (found->second.entry.shape != shape) {
    return absl::DataLossError(absl::StrCat(folder_, ": tensor ", name, " has the shape [",
                                            absl::StrJoin(found->second.entry.shape, ", "),
                                            "] instead of [", absl::StrJoin(shape, ", "), "]"));
  }
  return found->second;
}

absl::Status TensorFolder::ReadFp32(const Location& location, std::span<float> values,
                                    int64_t first) const {
  const std::string path = folder_ + "/" + location.file;
  const TensorEntry& entry = location.entry;
  const auto size = static_cast<int64_t>(values.size());
  CHECK(first >= 0 && size <= entry.elements() - first);
  if (entry.type != ElementType::kFp32 && entry.type != ElementType::kBf16) {
    return absl::DataLossError(
        absl::StrCat(path, ": tensor ", entry.name, " is neither fp32 nor bf16"));
  }
  const int64_t offset = location.offset + first * BytesOf(entry.type);
  if (entry.type == ElementType::kFp32) {
    return files_->ReadAt(
        path, offset, std::span<char>(reinterpret_cast<char*>(values.data()), values.size_bytes()));
  }
  std::vector<uint16_t> piece(static_cast<size_t>(std::min(kPieceElements, size)));
  for (int64_t done = 0; done < size; done += kPieceElements) {
    const auto count = static_cast<size_t>(std::min(kPieceElements, size - done));
    RETURN_IF_ERROR(
        files_->ReadAt(path, offset + done * 2,
                       std::span<char>(reinterpret_cast<char*>(piece.data()), count * 2)));
    WidenBf16(std::span<const uint16_t>(piece.data(), count),
              values.subspan(static_cast<size_t>(done), count));
  }
  return absl::OkStatus();
}

}  // namespace esteira
