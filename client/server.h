#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace esteira {

// Where the coordinator is: the flag, else ESTEIRA_SERVER, else `server:` of
// ~/.config/esteira/config.yaml, else the local cluster that was started last. Unavailable
// when none of them names one; InvalidArgument for a name that is not HOST:PORT; a file of these
// that cannot be understood is an error of its own.
absl::StatusOr<std::string> ResolveServer(const std::string& flag);

// The folder that keeps what this user's clients remember, e.g. which local cluster is the default.
std::string StateFolder();

}  // namespace esteira
