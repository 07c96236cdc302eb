#include "coordinator/controller/worker_specs.h"

#include <algorithm>
#include <utility>

namespace esteira {
namespace {

// The field of every worker whose value is known, fastest first.
std::vector<double*> Fastest(std::vector<WorkerSpec*>& workers, double WorkerSpec::*rate) {
  std::vector<double*> rates;
  for (WorkerSpec* worker : workers) {
    if (worker->*rate > 0) rates.push_back(&(worker->*rate));
  }
  std::stable_sort(rates.begin(), rates.end(), [](double* a, double* b) { return *a > *b; });
  return rates;
}

// From the fastest on, those within kEqualRates of the first of them get the median of them all.
void EvenOut(std::vector<WorkerSpec*>& workers, double WorkerSpec::*rate) {
  const std::vector<double*> rates = Fastest(workers, rate);
  for (size_t begin = 0; begin < rates.size();) {
    size_t end = begin;
    while (end < rates.size() && *rates[begin] <= kEqualRates * *rates[end]) ++end;
    const double median = *rates[begin + (end - begin) / 2];
    for (; begin < end; ++begin) *rates[begin] = median;
  }
}

WorkerSpec SpecOf(const WorkerDescription& worker) {
  WorkerSpec spec;
  spec.kind = worker.device;
  spec.memory_bytes = worker.memory_bytes;
  if (worker.flops_fp32 > 0) spec.flops_fp32 = worker.flops_fp32;
  if (worker.flops_bf16 > 0) spec.flops_bf16 = worker.flops_bf16;
  if (worker.memory_bytes_per_second > 0) spec.bytes_per_second = worker.memory_bytes_per_second;
  spec.pass_seconds = worker.pass_seconds;
  return spec;
}

void EvenOutKinds(ClusterSpec& cluster) {
  std::map<std::string, std::vector<WorkerSpec*>> kinds;
  for (WorkerSpec& worker : cluster.workers) kinds[worker.kind].push_back(&worker);
  for (auto& [kind, workers] : kinds) {
    for (double WorkerSpec::*rate :
         {&WorkerSpec::flops_fp32, &WorkerSpec::flops_bf16, &WorkerSpec::bytes_per_second}) {
      EvenOut(workers, rate);
    }
  }
}

void SetFactors(const OpFactorsByKind& factors, ClusterSpec& cluster) {
  if (cluster.workers.empty()) return;
  const std::string& kind = cluster.workers.front().kind;
  const auto found = factors.find(kind);
  if (found != factors.end() &&
      std::all_of(cluster.workers.begin(), cluster.workers.end(),
                  [&](const WorkerSpec& worker) { return worker.kind == kind; })) {
    cluster.factors = found->second;
  }
}

}  // namespace

ClusterSpec ClusterOf(const Membership& membership, const std::vector<std::string>& ids,
                      const OpFactorsByKind& factors) {
  ClusterSpec cluster;
  std::map<std::string, int> hosts;
  for (const std::string& id : ids) {
    const WorkerDescription& worker = membership.Find(id)->description;
    WorkerSpec& spec = cluster.workers.emplace_back(SpecOf(worker));
    spec.host = hosts.emplace(worker.host, static_cast<int>(hosts.size())).first->second;
  }
  EvenOutKinds(cluster);
  SetFactors(factors, cluster);
  return cluster;
}

ClusterSpec PossibleCluster(const Membership& membership, int min_workers,
                            const OpFactorsByKind& factors) {
  std::vector<std::string> present;
  for (const auto& [id, worker] : membership.workers()) {
    if (!worker.lost) present.push_back(id);
  }
  ClusterSpec cluster = ClusterOf(membership, present, factors);
  WorkerSpec smallest;
  for (const WorkerSpec& worker : cluster.workers) {
    const bool smaller = smallest.memory_bytes == 0 || worker.memory_bytes < smallest.memory_bytes;
    if (worker.memory_bytes > 0 && smaller) smallest = worker;
  }
  while (cluster.num_workers() < min_workers) cluster.workers.push_back(smallest);
  return cluster;
}

}  // namespace esteira
