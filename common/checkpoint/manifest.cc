#include "common/checkpoint/manifest.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr int64_t kFormatVersion = 1;
constexpr size_t kDigestDigits = 64;

bool IsFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestName &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

bool IsDigest(const std::string& text) {
  if (text.size() != kDigestDigits) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c)) && !(c >= 'a' && c <= 'f'))
      return false;
  }
  return true;
}

absl::StatusOr<ManifestFile> ParseFile(const json& entry) {
  if (!entry.is_object()) return absl::DataLossError("an entry of \"files\" is not an object");
  ManifestFile file;
  ASSIGN_OR_RETURN(file.name, StringField(entry, "name"));
  ASSIGN_OR_RETURN(file.bytes, IntField(entry, "bytes"));
  ASSIGN_OR_RETURN(file.sha256, StringField(entry, "sha256"));
  if (!IsFileName(file.name)) {
    return absl::DataLossError(
        absl::StrCat("\"", file.name, "\" is no name of a file in the folder"));
  }
  if (file.bytes < 0) return absl::DataLossError(absl::StrCat(file.name, " has a negative size"));
  if (!IsDigest(file.sha256))
    return absl::DataLossError(absl::StrCat(file.name, " has no SHA-256"));
  return file;
}

absl::StatusOr<Manifest> ParseFields(absl::string_view text) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, "it"));
  ASSIGN_OR_RETURN(const int64_t version, IntField(object, "format_version"));
  if (version != kFormatVersion) {
    return absl::DataLossError(absl::StrCat("format version ", version, " is not known; 1 is"));
  }
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.step, IntField(object, "step"));
  if (manifest.step < 0) return absl::DataLossError("the step is negative");
  const auto files = object.find("files");
  if (files == object.end() || !files->is_array())
    return absl::DataLossError("field \"files\" is not a list");
  std::set<std::string> names;
  for (const json& entry : *files) {
    ASSIGN_OR_RETURN(ManifestFile file, ParseFile(entry));
    if (!names.insert(file.name).second) {
      return absl::DataLossError(absl::StrCat(file.name, " stands twice"));
    }
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

}  // namespace

int64_t Manifest::total_bytes() const {
  int64_t total = 0;
  for (const ManifestFile& file : files) total += file.bytes;
  return total;
}

std::string PrintManifest(const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return PrintJson({{"format_version", kFormatVersion}, {"step", manifest.step}, {"files", files}});
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  absl::StatusOr<Manifest> manifest = ParseFields(text);
  if (!manifest.ok()) {
    return absl::DataLossError(absl::StrCat(kManifestName, ": ", manifest.status().message()));
  }
  return manifest;
}

}  // namespace esteira
