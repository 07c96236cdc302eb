#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/render.h"
#include "client/server.h"
#include "common/base/status_macros.h"
#include "common/rpc/json.h"

namespace esteira {
namespace {

absl::StatusOr<v1::ListWorkersResponse> FetchWorkers(const std::string& server_flag) {
  ASSIGN_OR_RETURN(const std::string server, ResolveServer(server_flag));
  v1::ListWorkersResponse response;
  RETURN_IF_ERROR(Connection(server).ListWorkers(v1::ListWorkersRequest(), response));
  return response;
}

// "123.4 GFLOP/s"; "-" when it is not known.
std::string RateText(double rate, const char* unit) {
  return rate > 0 ? absl::StrFormat("%.1f G%s", rate / 1e9, unit) : "-";
}

void PrintWorker(const v1::Worker& worker) {
  std::cout << "Id           " << worker.id() << "\n"
            << "State        " << v1::WorkerState_Name(worker.state()) << "\n";
  if (!worker.message().empty()) std::cout << "Message      " << worker.message() << "\n";
  std::cout << "Host         " << worker.host() << "\n"
            << "Device       " << worker.device() << ", " << worker.threads()
            << (worker.threads() == 1 ? " thread\n" : " threads\n") << "Memory       "
            << FormatBytes(worker.memory_bytes()) << ", "
            << RateText(worker.memory_bytes_per_second(), "B/s") << "\n"
            << "Rate fp32    " << RateText(worker.flops_fp32(), "FLOP/s") << "\n"
            << "Rate bf16    " << RateText(worker.flops_bf16(), "FLOP/s") << "\n";
  if (worker.pass_seconds() > 0) {
    std::cout << "Pass         " << FormatSeconds(worker.pass_seconds()) << " of each block\n";
  }
  if (!worker.job().empty()) {
    std::cout << "Job          " << worker.job() << ", rank " << worker.rank() << "\n";
  }
  std::cout << "Heartbeat    " << FormatAge(worker.last_heartbeat_time(), absl::Now()) << " ago\n"
            << "Version      " << worker.version() << "\n";
}

void PrintWorkers(const v1::ListWorkersResponse& response) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "STATE", "HOST", "DEVICE", "THREADS", "MEMORY", "JOB", "RANK", "HEARTBEAT"}};
  for (const v1::Worker& worker : response.workers()) {
    const bool busy = !worker.job().empty();
    rows.push_back({worker.id(), v1::WorkerState_Name(worker.state()), worker.host(),
                    worker.device(), absl::StrCat(worker.threads()),
                    FormatBytes(worker.memory_bytes()), busy ? worker.job() : "-",
                    busy ? absl::StrCat(worker.rank()) : "-",
                    FormatAge(worker.last_heartbeat_time(), absl::Now()) + " ago"});
  }
  PrintTable(rows, std::cout);
}

}  // namespace

ExitCode ListWorkers(const WorkerOptions& options) {
  const absl::StatusOr<v1::ListWorkersResponse> workers = FetchWorkers(options.server);
  if (!workers.ok()) return ReportError(workers.status());
  if (options.output == Output::kJson) {
    std::cout << ToPrettyJson(*workers) << "\n";
  } else {
    PrintWorkers(*workers);
  }
  return kExitOk;
}

ExitCode DescribeWorker(const WorkerOptions& options) {
  const absl::StatusOr<v1::ListWorkersResponse> workers = FetchWorkers(options.server);
  if (!workers.ok()) return ReportError(workers.status());
  const auto found =
      std::find_if(workers->workers().begin(), workers->workers().end(),
                   [&](const v1::Worker& worker) { return worker.id() == options.worker; });
  if (found == workers->workers().end()) {
    return ReportError(absl::NotFoundError(
        absl::StrCat("no worker is called ", options.worker, "; see `esteira workers list`")));
  }
  if (options.output == Output::kJson) {
    std::cout << ToPrettyJson(*found) << "\n";
  } else {
    PrintWorker(*found);
  }
  return kExitOk;
}

}  // namespace esteira
