// How daemons are named: the forms that every program of the project accepts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

// A worker's id: 1 to 128 letters, digits, or any of "-_.:". Ids go into paths of logs, labels and
// messages.
absl::Status CheckWorkerId(absl::string_view id);

struct HostPort {
  std::string host;
  int port = 0;  // 0: any free one, of an address to listen on
};
// "host:port": a name, an IPv4 address, or an IPv6 address in brackets, and a port of at least
// `least_port`. InvalidArgument for anything else.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address, int least_port);

}  // namespace esteira
