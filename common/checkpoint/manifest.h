#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

inline constexpr char kManifestName[] = "manifest.json";

// What a checkpoint folder consists of. A folder is a checkpoint exactly when it holds a manifest
// and every file that the manifest names, with that size and digest; so the manifest is written
// last. A value.
struct ManifestFile {
  std::string name;  // inside the folder
  int64_t bytes = 0;
  std::string sha256;  // lower-case hex
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::vector<ManifestFile> files;
  int64_t total_bytes() const;
  bool operator==(const Manifest&) const = default;
};

std::string PrintManifest(const Manifest& manifest);

// DataLoss says what is wrong: not JSON, an unknown format version, a name that leaves the folder
// or stands twice, a negative size, a digest that is none.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace esteira
