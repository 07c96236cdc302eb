#include "common/checkpoint/data_identity.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/checkpoint/digest.h"

namespace esteira {
namespace {

absl::StatusOr<DataIdentity> Identify(FileSystem& files, const DataSource& source) {
  DataIdentity identity{source.path, source.weight, 0, ""};
  ASSIGN_OR_RETURN(identity.bytes, files.Size(source.path));
  // Where the last piece begins; a file that the pieces cover is read as a whole.
  const int64_t last = std::max<int64_t>(identity.bytes - kIdentityPieceBytes, 0);
  Digest digest;
  std::vector<char> piece(static_cast<size_t>(kIdentityPieceBytes));
  int64_t done = 0;
  for (int64_t i = 0; i < kIdentityPieces; ++i) {
    const int64_t spread = last / (kIdentityPieces - 1) * i;
    const int64_t begin = i == kIdentityPieces - 1 ? last : spread;
    const int64_t from = std::max(begin, done);
    const int64_t end = std::min(begin + kIdentityPieceBytes, identity.bytes);
    if (from >= end) continue;
    const std::span<char> part(piece.data(), static_cast<size_t>(end - from));
    RETURN_IF_ERROR(files.ReadAt(source.path, from, part));
    digest.Append(absl::string_view(part.data(), part.size()));
    done = end;
  }
  identity.sha256 = digest.Finish();
  return identity;
}

}  // namespace

absl::StatusOr<std::vector<DataIdentity>> IdentifyData(FileSystem& files,
                                                       const std::vector<DataSource>& sources) {
  std::vector<DataIdentity> identities;
  for (const DataSource& source : sources) {
    ASSIGN_OR_RETURN(DataIdentity identity, Identify(files, source));
    identities.push_back(std::move(identity));
  }
  return identities;
}

}  // namespace esteira
