#pragma once

#include "absl/status/status.h"

namespace esteira {

// What `esteira` and the commands behind it return; scripts rely on it.
enum ExitCode : int {
  kExitOk = 0,
  kExitJobFailed = 1,
  kExitUsage = 2,  // or an invalid spec, or something that cannot be done as things are
  kExitNotConnected = 3,
  kExitNotAllowed = 4,
  kExitNotFound = 5,
  kExitTimedOut = 124,
};

ExitCode ExitCodeOf(const absl::Status& status);

// Prints what is wrong and, on a second line, what to do; returns the exit code.
ExitCode ReportError(const absl::Status& status);

}  // namespace esteira
