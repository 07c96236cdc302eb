// Which data a run is trained on, so that a continued run can tell whether they are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/plan/job_spec.h"

namespace esteira {

struct DataIdentity {
  std::string path;
  double weight = 1;
  int64_t bytes = 0;
  std::string sha256;  // of a sample of the file, see IdentifyData
  bool operator==(const DataIdentity&) const = default;
};

// Reads at most kIdentityPieces pieces of kIdentityPieceBytes of each file, evenly spaced from its
// first byte to its last: quick for any size, and found out is every other file, every change of
// size, and changes all over the file, though not that of one byte somewhere in a large one.
inline constexpr int64_t kIdentityPieces = 64;
inline constexpr int64_t kIdentityPieceBytes = 16384;
absl::StatusOr<std::vector<DataIdentity>> IdentifyData(FileSystem& files,
                                                       const std::vector<DataSource>& sources);

}  // namespace esteira
