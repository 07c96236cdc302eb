// What travels through the coordinator as a rank's address:
//
//   "EUCX" | length: u32 | crc32c of the body: u32 | body: UCX's own bytes
//
// UCX's parser is not made for hostile or damaged bytes, so none reach it that this envelope does
// not vouch for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

std::string WrapAddress(absl::string_view body);
// InvalidArgument: not an address, truncated, or damaged.
absl::StatusOr<std::string> UnwrapAddress(absl::string_view address);

}  // namespace esteira
