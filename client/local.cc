#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/render.h"

namespace esteira {
namespace {

absl::StatusOr<LocalCluster> Find(const std::string& directory) {
  return directory.empty() ? DefaultLocalCluster() : ReadLocalCluster(directory);
}

void PrintCluster(const LocalCluster& cluster) {
  std::vector<std::vector<std::string>> rows = {{"DAEMON", "PID", "STATE", "METRICS", "LOG"}};
  for (const LocalDaemon& daemon : cluster.daemons) {
    rows.push_back({daemon.name, absl::StrCat(daemon.pid), IsRunning(daemon) ? "running" : "ended",
                    absl::StrCat("http://", daemon.metrics, "/metrics"), daemon.log});
  }
  PrintTable(rows, std::cout);
}

}  // namespace

ExitCode LocalUp(const LocalClusterOptions& options) {
  if (options.device == "cuda") {
    return ReportError(absl::InvalidArgumentError(
        "--device cuda: this build has no CUDA; use --device cpu, or synthetic"));
  }
  const absl::StatusOr<LocalCluster> cluster = StartLocalCluster(options);
  if (!cluster.ok()) return ReportError(cluster.status());
  std::cout << "A local cluster of " << options.workers << " workers is up at " << cluster->server
            << " (" << cluster->directory
            << ").\nIt is the default server until `esteira local down`.\n";
  PrintCluster(*cluster);
  return kExitOk;
}

ExitCode LocalDown(const std::string& directory) {
  const absl::StatusOr<LocalCluster> cluster = Find(directory);
  if (!cluster.ok()) return ReportError(cluster.status());
  const absl::Status status = StopLocalCluster(*cluster);
  if (!status.ok()) return ReportError(status);
  std::cout << "Stopped the cluster in " << cluster->directory << "; its data and logs are kept.\n";
  return kExitOk;
}

ExitCode LocalStatus(const std::string& directory) {
  const absl::StatusOr<LocalCluster> cluster = Find(directory);
  if (!cluster.ok()) return ReportError(cluster.status());
  std::cout << "Server " << cluster->server << "\n";
  PrintCluster(*cluster);
  return kExitOk;
}

}  // namespace esteira
