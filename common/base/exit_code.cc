#include "common/base/exit_code.h"

#include <iostream>

namespace esteira {
namespace {

const char* WhatToDo(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "Start a cluster with `esteira local up`, or name one with --server HOST:PORT or "
             "ESTEIRA_SERVER.";
    case absl::StatusCode::kDeadlineExceeded: return "Try again, or give more time with --timeout.";
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "Check the permissions of what the message names.";
    case absl::StatusCode::kNotFound:
      return "Check the name; `esteira list` shows the jobs, `esteira workers list` the workers.";
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists: return "The message says what stands in the way.";
    case absl::StatusCode::kResourceExhausted:
      return "Ask for less, or give more room, as the message says.";
    case absl::StatusCode::kUnimplemented: return "Use what the message names instead.";
    case absl::StatusCode::kInvalidArgument:
      return "Correct what is named above and try again; README.md, \"The job file\", lists the "
             "fields.";
    case absl::StatusCode::kDataLoss:
      return "Use another checkpoint or copy; `esteira checkpoints verify DIR` names what is "
             "damaged.";
    default: return "The coordinator's log may say more.";
  }
}

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kExitOk;
    case absl::StatusCode::kUnavailable: return kExitNotConnected;
    case absl::StatusCode::kDeadlineExceeded: return kExitTimedOut;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied: return kExitNotAllowed;
    case absl::StatusCode::kNotFound: return kExitNotFound;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented: return kExitUsage;
    default: return kExitJobFailed;
  }
}

ExitCode ReportError(const absl::Status& status) {
  std::cout.flush();
  std::cerr << "esteira: " << status.message() << "\n" << WhatToDo(status) << "\n";
  return ExitCodeOf(status);
}

}  // namespace esteira
