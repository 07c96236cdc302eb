// esteira-coordinator: wiring only.
#include <grpcpp/impl/service_type.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/observability/coordinator_metrics.h"
#include "common/observability/exposer.h"
#include "common/observability/process_collector.h"
#include "common/rpc/server.h"
#include "coordinator/controller/controller.h"
#include "coordinator/job/data_directory.h"
#include "coordinator/job/sqlite_job_store.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/services.h"
#include "coordinator/service/wire_planner.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7070",
          "Address of the gRPC services, host:port. Port 0: any free port, see --port_file.");
ABSL_FLAG(std::string, metrics_listen, "127.0.0.1:0",
          "Address of the Prometheus endpoint /metrics.");
ABSL_FLAG(std::string, data_dir, "",
          "Folder of the jobs: their database, logs and step records. Needed; made when it is not "
          "there.");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(10),
          "A worker that is not heard of for so long is lost, and its job fails.");
ABSL_FLAG(absl::Duration, heartbeat, absl::Seconds(2),
          "How often workers make themselves heard; less than half of --lease.");
ABSL_FLAG(absl::Duration, start_timeout, absl::Minutes(2),
          "A job fails when its trainers are not ready after so long.");
ABSL_FLAG(absl::Duration, operation_timeout, absl::Minutes(5),
          "A trainer gives up an exchange with another rank after so long.");
ABSL_FLAG(std::string, port_file, "",
          "Write the bound addresses there as JSON, once the coordinator serves.");
ABSL_FLAG(
    bool, allow_remote, false,
    "Allow addresses other than loopback. Connections are neither encrypted nor authenticated.");
ABSL_FLAG(bool, reflection, false, "Serve gRPC reflection, for tools like grpcurl.");
ABSL_FLAG(std::string, log_level, "info",
          "Lowest level that is logged: debug, info, warning or error.");

namespace esteira {
namespace {

constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

absl::StatusOr<ControllerOptions> OptionsFromFlags() {
  ControllerOptions options;
  options.membership.lease = absl::GetFlag(FLAGS_lease);
  options.heartbeat = absl::GetFlag(FLAGS_heartbeat);
  options.start_timeout = absl::GetFlag(FLAGS_start_timeout);
  options.operation_timeout = absl::GetFlag(FLAGS_operation_timeout);
  if (options.heartbeat < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError("--heartbeat: must be at least 10ms");
  }
  if (options.membership.lease <= 2 * options.heartbeat) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lease=", absl::FormatDuration(options.membership.lease),
                     ": must be more than twice --heartbeat, which is ",
                     absl::FormatDuration(options.heartbeat)));
  }
  if (options.start_timeout <= absl::ZeroDuration() ||
      options.operation_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--start_timeout and --operation_timeout must be positive");
  }
  return options;
}

std::vector<std::string> JobStateNames() {
  std::vector<std::string> names;
  names.reserve(kJobStates.size());
  for (const JobState state : kJobStates) names.push_back(JobStateName(state));
  return names;
}

absl::Status WritePortFile(const RpcServer& server, const MetricsExposer& exposer) {
  const std::string path = absl::GetFlag(FLAGS_port_file);
  if (path.empty()) return absl::OkStatus();
  const std::string metrics = absl::GetFlag(FLAGS_metrics_listen);
  RealFileSystem files;
  return WriteFileAtomically(
      files, path,
      absl::StrCat("{\"address\":\"", server.host(), ":", server.port(), "\",\"port\":",
                   server.port(), ",\"metrics_address\":\"", metrics.substr(0, metrics.rfind(':')),
                   ":", exposer.port(), "\",\"metrics_port\":", exposer.port(), "}\n"));
}

void WaitForSignal(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
}

absl::Status Run(const sigset_t& signals) {
  ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(absl::GetFlag(FLAGS_log_level)));
  ASSIGN_OR_RETURN(const ControllerOptions options, OptionsFromFlags());
  if (absl::GetFlag(FLAGS_data_dir).empty()) {
    return absl::InvalidArgumentError(
        "--data_dir: missing. Name a folder that only this coordinator uses");
  }
  const std::unique_ptr<LogSink> sink = MakeStderrLogSink("esteira-coordinator", level);
  const Logger log(*sink);

  ASSIGN_OR_RETURN(const auto directory, DataDirectory::Open(absl::GetFlag(FLAGS_data_dir)));
  ASSIGN_OR_RETURN(const auto store, SqliteJobStore::Open(directory->DatabasePath()));
  const auto registry = std::make_shared<prometheus::Registry>();
  CoordinatorMetrics metrics(*registry, JobStateNames(), {"IDLE", "BUSY", "LOST"});
  ExportBuildInfo(*registry, "coordinator", ESTEIRA_VERSION);
  ASSIGN_OR_RETURN(const auto exposer, MetricsExposer::Open(absl::GetFlag(FLAGS_metrics_listen),
                                                            {registry, MakeProcessCollector()}));

  RealClock clock;
  WirePlanner planner(MakePlan);
  Controller controller(options, {clock, *store, *directory, planner, metrics}, log);
  RETURN_IF_ERROR(controller.Start());

  const auto jobs = MakeJobService(controller, *store, *directory);
  const auto cluster = MakeClusterService(controller, ESTEIRA_VERSION);
  const auto workers = MakeWorkerService(controller);
  RpcServerOptions server_options;
  server_options.address = absl::GetFlag(FLAGS_listen);
  server_options.allow_remote = absl::GetFlag(FLAGS_allow_remote);
  server_options.reflection = absl::GetFlag(FLAGS_reflection);
  server_options.observer = [&metrics](const std::string& method, const std::string& code,
                                       absl::Duration duration) {
    metrics.ObserveRpc(method, code, duration);
  };
  ASSIGN_OR_RETURN(const auto server,
                   RpcServer::Start(server_options, {{"esteira.v1.JobService", jobs.get()},
                                                     {"esteira.v1.ClusterService", cluster.get()},
                                                     {"esteira.v1.WorkerService", workers.get()}}));
  server->SetServing(true);
  RETURN_IF_ERROR(WritePortFile(*server, *exposer));
  log.With("address", absl::StrCat(server->host(), ":", server->port()))
      .With("metrics_port", exposer->port())
      .With("data_dir", absl::GetFlag(FLAGS_data_dir))
      .Info("coordinator serves");

  WaitForSignal(signals);
  log.Info("coordinator stops; training goes on without it");
  server->Shutdown(kShutdownGrace);
  controller.Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  // Before any thread exists, so that only sigwait gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  absl::SetProgramUsageMessage(
      "queues training jobs, plans them, and looks after their workers.\n\n"
      "  esteira-coordinator --data_dir=/var/lib/esteira\n\n"
      "SIGTERM ends it; trainers go on and meet it again when it is back.");
  absl::FlagsUsageConfig usage;
  const auto own_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "coordinator/main.cc");
  };
  usage.contains_help_flags = own_flags;
  usage.contains_helpshort_flags = own_flags;
  usage.version_string = [] { return std::string("esteira-coordinator " ESTEIRA_VERSION "\n"); };
  usage.normalize_filename = [](absl::string_view file) {
    return std::string(file.substr(std::min(file.size(), file.rfind("coordinator/"))));
  };
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr, "esteira-coordinator: unexpected argument \"%s\"; see --help\n", rest[1]);
    return 2;
  }
  const absl::Status status = esteira::Run(signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "esteira-coordinator: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}
