#include "coordinator/controller/worker_specs.h"

#include <algorithm>

namespace esteira {

ClusterSpec ClusterOf(const Membership& membership, const std::vector<std::string>& ids) {
  ClusterSpec cluster;
  for (const std::string& id : ids) {
    WorkerSpec worker;
    worker.memory_bytes = membership.Find(id)->description.memory_bytes;
    cluster.workers.push_back(worker);
  }
  return cluster;
}

ClusterSpec PossibleCluster(const Membership& membership, int min_workers) {
  std::vector<std::string> present;
  for (const auto& [id, worker] : membership.workers()) {
    if (!worker.lost) present.push_back(id);
  }
  ClusterSpec cluster = ClusterOf(membership, present);
  WorkerSpec smallest;
  for (const WorkerSpec& worker : cluster.workers) {
    const bool smaller = smallest.memory_bytes == 0 || worker.memory_bytes < smallest.memory_bytes;
    if (worker.memory_bytes > 0 && smaller) smallest = worker;
  }
  while (cluster.num_workers() < min_workers) cluster.workers.push_back(smallest);
  return cluster;
}

}  // namespace esteira
