#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace esteira {

// Where the coordinator is: the flag, else ESTEIRA_SERVER, else `server:` of
// ~/.config/esteira/config.yaml, else the local cluster that was started last. NotFound-like errors
// say that none of them names one (Unavailable).
absl::StatusOr<std::string> ResolveServer(const std::string& flag);

// The folder that keeps what this user's clients remember, e.g. which local cluster is the default.
std::string StateFolder();

}  // namespace esteira
