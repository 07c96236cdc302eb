// The file that tells `esteira plan` of a cluster: workers by kind, and links within and between
// hosts.
//
//   workers:
//     - {count: 8, kind: h100, memory: 80 GiB, flops: 400e12, memory_bandwidth: 3e12, per_host: 8}
//   links:
//     within_host: {latency: 5us, bandwidth: 400e9}
//     between_hosts: {latency: 20us, bandwidth: 50e9}
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/cluster.h"

namespace esteira {

// What is left out has the value of ClusterSpec. InvalidArgument with every fault, one a line, each
// with the path of its field.
absl::StatusOr<ClusterSpec> ParseClusterFile(absl::string_view text);
absl::StatusOr<ClusterSpec> ReadClusterFile(const std::string& path);

}  // namespace esteira
