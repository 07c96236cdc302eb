#include <yaml-cpp/yaml.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands.h"
#include "client/job_file.h"
#include "client/render.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/plan/plan_codec.h"
#include "common/rpc/json.h"
#include "coordinator/planner/planner.h"
#include "esteira/v1/plan.pb.h"

namespace esteira {
namespace {

// A cluster file is a map of ClusterSpec's fields.
absl::StatusOr<ClusterSpec> ReadClusterFile(const std::string& path) {
  RealFileSystem files;
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok())
    return absl::InvalidArgumentError(absl::StrCat("the cluster file: ", text.status().message()));
  ClusterSpec cluster;
  try {
    const YAML::Node root = YAML::Load(*text);
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a map of fields"));
    }
    for (const auto& entry : root) {
      const std::string key = entry.first.as<std::string>();
      if (key == "num_workers") {
        cluster.num_workers = entry.second.as<int>();
      } else if (key == "memory_bytes_per_worker") {
        cluster.memory_bytes_per_worker = entry.second.as<int64_t>();
      } else if (key == "flops_per_worker") {
        cluster.flops_per_worker = entry.second.as<double>();
      } else if (key == "link_latency_seconds") {
        cluster.link_latency_seconds = entry.second.as<double>();
      } else if (key == "link_bytes_per_second") {
        cluster.link_bytes_per_second = entry.second.as<double>();
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": unknown field ", key,
                         "; known: num_workers, memory_bytes_per_worker, flops_per_worker, "
                         "link_latency_seconds, "
                         "link_bytes_per_second"));
      }
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  return cluster;
}

absl::Status CheckCluster(const ClusterSpec& cluster, const std::string& path) {
  if (cluster.num_workers < 1) {
    return absl::InvalidArgumentError(
        path.empty() ? "for how many workers? Give --workers N or --cluster FILE"
                     : absl::StrCat(path, ": num_workers must be at least 1"));
  }
  if (cluster.memory_bytes_per_worker < 0 || !(cluster.flops_per_worker > 0) ||
      !(cluster.link_latency_seconds >= 0) || !(cluster.link_bytes_per_second > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": memory and latency must not be negative, and rates must be above 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlanFor(const PlanOptions& options) {
  ASSIGN_OR_RETURN(const JobFile job, ReadJobFile(options.file, options.overrides));
  ClusterSpec cluster;
  if (!options.cluster_file.empty()) {
    ASSIGN_OR_RETURN(cluster, ReadClusterFile(options.cluster_file));
  }
  if (options.workers > 0) cluster.num_workers = options.workers;
  RETURN_IF_ERROR(CheckCluster(cluster, options.cluster_file));
  return MakePlan(job.spec, cluster);
}

void PrintSummary(const Plan& plan) {
  const Layout& layout = plan.layout;
  std::cout << absl::StrFormat(
                   "%d stages x %d replicas, ZeRO %d, %s, %d micro-batches of %d sequences\n",
                   layout.stages, layout.replicas, layout.zero, layout.schedule,
                   layout.num_micro_batches(), layout.micro_batch_size)
            << absl::StrFormat("predicted: %s a step, bubble %.1f %%, digest %s\n\n",
                               FormatSeconds(plan.prediction.step_seconds),
                               100 * plan.prediction.bubble_ratio, PlanDigest(plan).substr(0, 16));
  std::vector<std::vector<std::string>> rows = {{"RANK", "STAGE", "REPLICA", "UNITS", "PARAMETERS",
                                                 "GRADIENTS", "OPTIMIZER", "SLOTS", "WORKSPACE",
                                                 "TOTAL"}};
  for (const Program& program : plan.train) {
    const MemoryUse& memory = plan.prediction.memory[static_cast<size_t>(program.rank)];
    rows.push_back({absl::StrCat(program.rank), absl::StrCat(program.stage),
                    absl::StrCat(program.replica),
                    absl::StrCat(program.units.front(), "-", program.units.back()),
                    FormatBytes(memory.parameters), FormatBytes(memory.gradients),
                    FormatBytes(memory.optimizer), FormatBytes(memory.slots),
                    FormatBytes(memory.workspace), FormatBytes(memory.total())});
  }
  PrintTable(rows, std::cout);
  std::cout << "\n" << PrintPlan(plan);
}

}  // namespace

ExitCode ShowPlan(const PlanOptions& options) {
  const absl::StatusOr<Plan> plan = MakePlanFor(options);
  if (!plan.ok()) return ReportError(plan.status());
  if (options.output == Output::kJson) {
    std::cout << ToPrettyJson(EncodePlan(*plan)) << "\n";
  } else {
    PrintSummary(*plan);
  }
  return kExitOk;
}

}  // namespace esteira
