#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace esteira {

// A daemon of a local cluster. `start_ticks` (of /proc/PID/stat) tells it from a later process with
// the same pid.
struct LocalDaemon {
  std::string name;
  int pid = 0;
  uint64_t start_ticks = 0;
  std::string log;
  std::string metrics;  // host:port of /metrics
};

// A coordinator and its workers on this machine, as DIR/cluster.json remembers them.
struct LocalCluster {
  std::string directory;
  std::string server;
  std::vector<LocalDaemon> daemons;  // the coordinator first
};

struct LocalClusterOptions {
  std::string directory;
  int workers = 2;
  int threads = 0;             // of each worker; 0: the machine's cores divided by the workers
  int port = 0;                // 0: any free one
  std::string device = "cpu";  // cpu | synthetic
  std::string synthetic_pass_seconds;  // as the worker's flags; empty: not given
  std::string synthetic_flops;
  std::vector<std::string> slow_down;  // "worker-2=2.5": that worker's --slow_down
};

// Starts the daemons, waits until every worker is registered, and makes this cluster the default.
// When anything fails, what was started is stopped again. FailedPrecondition when a cluster runs in
// the directory already.
absl::StatusOr<LocalCluster> StartLocalCluster(const LocalClusterOptions& options);
// SIGTERM to all, SIGKILL to those that stay; removes cluster.json. The data and logs stay.
absl::Status StopLocalCluster(const LocalCluster& cluster);

absl::StatusOr<LocalCluster> ReadLocalCluster(const std::string& folder);
// The cluster that `up` started last, if it was not stopped since.
absl::StatusOr<LocalCluster> DefaultLocalCluster();
std::string DefaultLocalDirectory();

bool IsRunning(const LocalDaemon& daemon);

}  // namespace esteira
