// esteira-worker: the daemon; and, by its first argument, the trainer process that the daemon
// starts, and the commands that need a model (generate, evaluate). Wiring only.

#include <prometheus/registry.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/file_system.h"
#include "common/base/log.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/observability/exposer.h"
#include "common/observability/process_collector.h"
#include "common/observability/worker_metrics.h"
#include "worker/agent/agent.h"
#include "worker/device/device.h"
#include "worker/inference/commands.h"
#include "worker/trainer/compute.h"
#include "worker/trainer/trainer.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070", "The coordinator, host:port");
ABSL_FLAG(std::string, id, "",
          "Name of this worker, unique in the cluster; default: the host's name");
ABSL_FLAG(std::string, device, "cpu",
          "cpu | synthetic (takes the time of computing, computes nothing: the loss is 0)");
ABSL_FLAG(double, synthetic_pass_seconds, 0,
          "Synthetic: each of F, I, W and R of a block takes so long, B twice, embedding and head "
          "nothing; 0: 0.01, unless --synthetic_flops is given");
ABSL_FLAG(double, synthetic_flops, 0,
          "Synthetic: each pass takes its floating point operations by this rate; 0: see "
          "--synthetic_pass_seconds");
ABSL_FLAG(
    double, slow_down, 1,
    "Make each of F, B, I, W and R take so many times as long, for trials of uneven clusters");
ABSL_FLAG(double, flops_fp32, 0, "What the device achieves; 0: measured at the start");
ABSL_FLAG(double, flops_bf16, 0, "What the device achieves; 0: measured at the start");
ABSL_FLAG(double, memory_bytes_per_second, 0, "What the device achieves; 0: measured at the start");
ABSL_FLAG(int, threads, 0,
          "Threads of the compute kernels; 0: the machine's cores, by --workers_on_host");
ABSL_FLAG(int64_t, memory_bytes, 0,
          "Memory that jobs may use; 0: what the machine has, by --workers_on_host");
ABSL_FLAG(int, workers_on_host, 1, "How many workers share this machine's cores and memory");
ABSL_FLAG(std::string, network_device, "lo",
          "Network device of the data plane (UCX_NET_DEVICES), e.g. eth0");
ABSL_FLAG(std::string, metrics_listen, "127.0.0.1:9091",
          "Address of /metrics, host:port; port 0: any free one");
ABSL_FLAG(std::string, port_file, "", "Write the bound addresses to this file, as JSON");
ABSL_FLAG(absl::Duration, orphan_timeout, absl::Minutes(10),
          "Kill the trainer after so long without a coordinator");
ABSL_FLAG(std::string, log_level, "info", "debug | info | warning | error");

namespace esteira {
namespace {

constexpr int kMaxThreads = 1024;

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

int WorkersOnHost() { return absl::GetFlag(FLAGS_workers_on_host); }

int Threads() {
  const int threads = absl::GetFlag(FLAGS_threads);
  if (threads > 0) return threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / WorkersOnHost());
}

int64_t MemoryBytes() {
  const int64_t bytes = absl::GetFlag(FLAGS_memory_bytes);
  return bytes > 0 ? bytes : MakeCpuDevice({})->total_memory_bytes() / WorkersOnHost();
}

// Before anything is started: what is wrong with a flag is told at once, not by the coordinator.
absl::Status CheckFlags() {
  const std::string id = absl::GetFlag(FLAGS_id);
  if (!id.empty()) {
    const absl::Status status = CheckWorkerId(id);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--id=", absl::CHexEscape(id), ": ", status.message()));
    }
  }
  const auto address = ParseHostPort(absl::GetFlag(FLAGS_coordinator), /*least_port=*/1);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--coordinator: ", address.status().message()));
  }
  if (absl::GetFlag(FLAGS_threads) < 0 || absl::GetFlag(FLAGS_threads) > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("--threads=", absl::GetFlag(FLAGS_threads),
                                                   ": give a number from 0 to ", kMaxThreads));
  }
  if (absl::GetFlag(FLAGS_memory_bytes) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--memory_bytes=", absl::GetFlag(FLAGS_memory_bytes), ": must not be negative"));
  }
  if (absl::GetFlag(FLAGS_workers_on_host) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--workers_on_host=", absl::GetFlag(FLAGS_workers_on_host), ": must be at least 1"));
  }
  if (absl::GetFlag(FLAGS_orphan_timeout) <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--orphan_timeout: must be positive");
  }
  return absl::OkStatus();
}

ComputeOptions MakeComputeOptions() {
  return {.device = absl::GetFlag(FLAGS_device),
          .threads = Threads(),
          .memory_bytes = MemoryBytes(),
          .synthetic_pass_seconds = absl::GetFlag(FLAGS_synthetic_pass_seconds),
          .synthetic_flops = absl::GetFlag(FLAGS_synthetic_flops),
          .slow_down = absl::GetFlag(FLAGS_slow_down)};
}

ComputeRates GivenRates() {
  return {.flops_fp32 = absl::GetFlag(FLAGS_flops_fp32),
          .flops_bf16 = absl::GetFlag(FLAGS_flops_bf16),
          .memory_bytes_per_second = absl::GetFlag(FLAGS_memory_bytes_per_second)};
}

// What was given is not measured.
absl::StatusOr<ComputeRates> Rates(const ComputeOptions& compute) {
  const ComputeRates given = GivenRates();
  if (!(given.flops_fp32 >= 0) || !(given.flops_bf16 >= 0) ||
      !(given.memory_bytes_per_second >= 0)) {
    return absl::InvalidArgumentError(
        "--flops_fp32, --flops_bf16 and --memory_bytes_per_second must be positive");
  }
  RETURN_IF_ERROR(CheckCompute(compute));
  if (compute.device != "synthetic" && given.flops_fp32 > 0 && given.flops_bf16 > 0 &&
      given.memory_bytes_per_second > 0) {
    return given;
  }
  ASSIGN_OR_RETURN(ComputeRates rates, MeasureRates(compute));
  if (given.flops_fp32 > 0) rates.flops_fp32 = given.flops_fp32;
  if (given.flops_bf16 > 0) rates.flops_bf16 = given.flops_bf16;
  if (given.memory_bytes_per_second > 0) {
    rates.memory_bytes_per_second = given.memory_bytes_per_second;
  }
  return rates;
}

// The trainer's flags: it computes with what the daemon has described.
std::vector<std::string> TrainerCommand(const ComputeOptions& compute, const ComputeRates& rates) {
  return {"/proc/self/exe",
          "trainer",
          absl::StrCat("--device=", compute.device),
          absl::StrCat("--synthetic_pass_seconds=", compute.synthetic_pass_seconds),
          absl::StrCat("--synthetic_flops=", compute.synthetic_flops),
          absl::StrCat("--slow_down=", compute.slow_down),
          absl::StrCat("--flops_fp32=", rates.flops_fp32),
          absl::StrCat("--flops_bf16=", rates.flops_bf16),
          absl::StrCat("--memory_bytes_per_second=", rates.memory_bytes_per_second),
          absl::StrCat("--threads=", compute.threads),
          absl::StrCat("--memory_bytes=", compute.memory_bytes),
          absl::StrCat("--network_device=", absl::GetFlag(FLAGS_network_device)),
          absl::StrCat("--log_level=", absl::GetFlag(FLAGS_log_level))};
}

AgentOptions MakeAgentOptions(const ComputeOptions& compute, const ComputeRates& rates) {
  AgentOptions options;
  options.host = HostName();
  options.session.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.session.worker_id =
      absl::GetFlag(FLAGS_id).empty() ? options.host : absl::GetFlag(FLAGS_id);
  absl::BitGen random;
  options.session.incarnation = absl::Uniform<uint64_t>(random);
  options.device = compute.device;
  options.memory_bytes = compute.memory_bytes;
  options.threads = compute.threads;
  options.rates = rates;
  options.version = ESTEIRA_VERSION;
  options.orphan_timeout = absl::GetFlag(FLAGS_orphan_timeout);
  options.trainer_command = TrainerCommand(compute, rates);
  return options;
}

absl::Status WritePortFile(const std::string& metrics_address) {
  const std::string path = absl::GetFlag(FLAGS_port_file);
  if (path.empty()) return absl::OkStatus();
  RealFileSystem files;
  return WriteFileAtomically(files, path,
                             absl::StrCat("{\"metrics_address\": \"", metrics_address, "\"}\n"));
}

// SIGTERM and SIGINT are taken by a thread of their own: every other thread has them blocked.
void StopOnSignal(Agent& agent) {
  std::thread([&agent] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    int signal = 0;
    sigwait(&signals, &signal);
    agent.Stop();
  }).detach();
}

void BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

absl::Status RunDaemon() {
  // Read by OpenMP when a trainer starts: threads that wait must sleep, since workers share cores.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  RETURN_IF_ERROR(CheckFlags());
  ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(absl::GetFlag(FLAGS_log_level)));
  BlockStopSignals();
  const std::unique_ptr<LogSink> sink = MakeStderrLogSink("esteira-worker", level);
  const ComputeOptions compute = MakeComputeOptions();
  ASSIGN_OR_RETURN(const ComputeRates rates, Rates(compute));
  const AgentOptions options = MakeAgentOptions(compute, rates);
  const Logger log = Logger(*sink).With("worker", options.session.worker_id);
  auto registry = std::make_shared<prometheus::Registry>();
  WorkerMetrics metrics(*registry);
  ExportBuildInfo(*registry, "worker", ESTEIRA_VERSION);
  const std::string address = absl::GetFlag(FLAGS_metrics_listen);
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsExposer> exposer,
                   MetricsExposer::Open(address, {registry, MakeProcessCollector()}));
  RETURN_IF_ERROR(
      WritePortFile(absl::StrCat(address.substr(0, address.rfind(':')), ":", exposer->port())));
  Agent agent(options, metrics, log);
  StopOnSignal(agent);
  log.With("coordinator", options.session.coordinator).Info("worker started");
  absl::Status status = agent.Run();
  log.Info("worker stopped");
  return status;
}

// The trainer dies with its daemon, and hears of an abort over the channel only.
absl::Status RunTrainerProcess() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(absl::GetFlag(FLAGS_log_level)));
  BlockStopSignals();
  const std::unique_ptr<LogSink> sink = MakeStderrLogSink("trainer", level);
  Channel channel(kChannelDescriptor);
  return RunTrainer(channel,
                    {.compute = MakeComputeOptions(),
                     .rates = GivenRates(),
                     .network_device = absl::GetFlag(FLAGS_network_device)},
                    Logger(*sink));
}

int Finish(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "esteira-worker: " << status.message() << "\n";
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const std::vector<std::string> rest(argv + std::min(argc, 2), argv + argc);
  // The two commands that `esteira` hands on: its exit codes and its way of telling errors.
  const auto finish = [](const absl::Status& status) -> int {
    return status.ok() ? kExitOk : ReportError(status);
  };
  if (command == "generate") return finish(GenerateMain(rest, std::cout));
  if (command == "evaluate") return finish(EvaluateMain(rest, std::cout));
  absl::SetProgramUsageMessage(
      "The worker daemon: registers at a coordinator and runs the ranks that it is given.\n"
      "  esteira-worker --coordinator HOST:PORT [flags]\n"
      "  esteira-worker generate|evaluate DIR ...   (see `esteira generate --help`)");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return absl::StrCat("esteira-worker ", ESTEIRA_VERSION, "\n"); };
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "worker/main.cc");
  };
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> positional = absl::ParseCommandLine(argc, argv);
  if (command == "trainer") return Finish(RunTrainerProcess());
  if (positional.size() > 1) {
    return Finish(absl::InvalidArgumentError(
        absl::StrCat("unknown argument ", positional[1], "; see --help")));
  }
  return Finish(RunDaemon());
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) { return esteira::Main(argc, argv); }
