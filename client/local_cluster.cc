#include "client/local_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/connection.h"
#include "client/program.h"
#include "client/server.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

extern char** environ;

namespace esteira {
namespace {

using nlohmann::json;

constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

// The one way to write a folder's path, so that two of them can be compared.
std::string AbsoluteFolder(const std::string& folder) {
  std::string path = std::filesystem::absolute(folder).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string ClusterFile(const std::string& directory) { return directory + "/cluster.json"; }
std::string WorkerName(int index) { return absl::StrCat("worker-", index); }
std::string DefaultFile() { return StateFolder() + "/default-local-cluster"; }

// Field 22 of /proc/PID/stat, or 0 when there is no such process or it is a zombie.
uint64_t StartTicks(int pid) {
  char bytes[1024] = {};
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = read(fd, bytes, sizeof bytes - 1);
  close(fd);
  if (size <= 0) return 0;
  const char* after_name = std::strrchr(bytes, ')');
  if (after_name == nullptr) return 0;
  const std::vector<std::string> fields =
      absl::StrSplit(absl::string_view(after_name + 1), ' ', absl::SkipEmpty());
  if (fields.size() < 20 || fields[0] == "Z") return 0;
  return std::strtoull(fields[19].c_str(), nullptr, 10);
}

// Field `name` of what may be anything: nlohmann's own access throws when a type is wrong.
std::string TextOf(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// 0 when the field is not there or is not an integer of 0 to `largest`.
uint64_t NumberOf(const json& object, const char* name, uint64_t largest) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end() || !found->is_number_integer()) return 0;
  if (!found->is_number_unsigned() && found->get<int64_t>() < 0) return 0;
  const auto value = found->get<uint64_t>();
  return value <= largest ? value : 0;
}

LocalDaemon DecodeDaemon(const json& daemon) {
  return {.name = TextOf(daemon, "name"),
          .pid = static_cast<int>(NumberOf(daemon, "pid", std::numeric_limits<int>::max())),
          .start_ticks = NumberOf(daemon, "start_ticks", std::numeric_limits<uint64_t>::max()),
          .log = TextOf(daemon, "log"),
          .metrics = TextOf(daemon, "metrics")};
}

bool IsComplete(const LocalDaemon& daemon) {
  return !daemon.name.empty() && daemon.pid > 0 && daemon.start_ticks > 0;
}

absl::StatusOr<LocalDaemon> StartDaemon(const std::string& name, const std::string& log,
                                        const std::vector<std::string>& command) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const auto destroy = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", command[0], ": ", std::strerror(error)));
  }
  return LocalDaemon{
      .name = name, .pid = pid, .start_ticks = StartTicks(pid), .log = log, .metrics = ""};
}

absl::Status DiedAtStart(const LocalDaemon& daemon) {
  RealFileSystem files;
  const absl::StatusOr<std::string> log = files.Read(daemon.log);
  std::string last;
  if (log.ok()) {
    for (absl::string_view line : absl::StrSplit(*log, '\n', absl::SkipEmpty()))
      last = std::string(line);
  }
  return absl::InternalError(
      absl::StrCat(daemon.name, " ended at once: ", last, " (log: ", daemon.log, ")"));
}

// The ports that a daemon has written to `path`, once it has.
absl::StatusOr<json> AwaitPorts(const LocalDaemon& daemon, const std::string& path) {
  RealFileSystem files;
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    if (files.Exists(path)) {
      ASSIGN_OR_RETURN(const std::string text, files.Read(path));
      json ports = json::parse(text, nullptr, false);
      if (ports.is_object()) return ports;
    }
    waitpid(daemon.pid, nullptr, WNOHANG);
    if (!IsRunning(daemon)) return DiedAtStart(daemon);
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat(daemon.name, " did not start in ",
                                                  absl::FormatDuration(kStartTimeout),
                                                  " (log: ", daemon.log, ")"));
}

absl::Status StartCoordinator(const LocalClusterOptions& options, LocalCluster& cluster) {
  RealFileSystem files;
  const std::string ports_path = options.directory + "/coordinator.ports";
  RETURN_IF_ERROR(files.RemoveAll(ports_path));
  ASSIGN_OR_RETURN(
      LocalDaemon coordinator,
      StartDaemon(
          "coordinator", options.directory + "/logs/coordinator.log",
          {ProgramPath("esteira-coordinator"), absl::StrCat("--listen=127.0.0.1:", options.port),
           "--metrics_listen=127.0.0.1:0", absl::StrCat("--data_dir=", options.directory, "/data"),
           absl::StrCat("--port_file=", ports_path)}));
  cluster.daemons.push_back(coordinator);
  ASSIGN_OR_RETURN(const json ports, AwaitPorts(coordinator, ports_path));
  cluster.server = TextOf(ports, "address");
  cluster.daemons.back().metrics = TextOf(ports, "metrics_address");
  return absl::OkStatus();
}

// FACTOR of each WORKER=FACTOR. The worker checks the factor.
absl::StatusOr<std::map<std::string, std::string>> SlowDowns(const LocalClusterOptions& options) {
  std::map<std::string, std::string> factors;
  for (const std::string& text : options.slow_down) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    int index = -1;
    if (parts.size() != 2 || !absl::StartsWith(parts[0], "worker-") ||
        !absl::SimpleAtoi(parts[0].substr(7), &index) || WorkerName(index) != parts[0] ||
        index >= options.workers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--slow-down ", text, ": use WORKER=FACTOR, with a worker of ",
                       WorkerName(0), " to ", WorkerName(options.workers - 1)));
    }
    factors[parts[0]] = parts[1];
  }
  return factors;
}

std::vector<std::string> WorkerCommand(const LocalClusterOptions& options,
                                       const LocalCluster& cluster, const std::string& name) {
  std::vector<std::string> command = {ProgramPath("esteira-worker"),
                                      absl::StrCat("--coordinator=", cluster.server),
                                      absl::StrCat("--id=", name),
                                      absl::StrCat("--device=", options.device),
                                      absl::StrCat("--threads=", options.threads),
                                      absl::StrCat("--workers_on_host=", options.workers),
                                      "--metrics_listen=127.0.0.1:0"};
  if (!options.synthetic_pass_seconds.empty()) {
    command.push_back(absl::StrCat("--synthetic_pass_seconds=", options.synthetic_pass_seconds));
  }
  if (!options.synthetic_flops.empty()) {
    command.push_back(absl::StrCat("--synthetic_flops=", options.synthetic_flops));
  }
  return command;
}

absl::Status StartWorkers(const LocalClusterOptions& options, LocalCluster& cluster) {
  RealFileSystem files;
  ASSIGN_OR_RETURN(const auto slow_downs, SlowDowns(options));
  for (int i = 0; i < options.workers; ++i) {
    const std::string name = WorkerName(i);
    const std::string ports_path = absl::StrCat(options.directory, "/", name, ".ports");
    RETURN_IF_ERROR(files.RemoveAll(ports_path));
    std::vector<std::string> command = WorkerCommand(options, cluster, name);
    command.push_back(absl::StrCat("--port_file=", ports_path));
    const auto slow = slow_downs.find(name);
    if (slow != slow_downs.end()) command.push_back(absl::StrCat("--slow_down=", slow->second));
    ASSIGN_OR_RETURN(
        LocalDaemon worker,
        StartDaemon(name, absl::StrCat(options.directory, "/logs/", name, ".log"), command));
    cluster.daemons.push_back(worker);
  }
  for (size_t i = 1; i < cluster.daemons.size(); ++i) {
    LocalDaemon& worker = cluster.daemons[i];
    ASSIGN_OR_RETURN(const json ports, AwaitPorts(worker, absl::StrCat(options.directory, "/",
                                                                       worker.name, ".ports")));
    worker.metrics = TextOf(ports, "metrics_address");
  }
  return absl::OkStatus();
}

absl::Status AwaitRegistration(const LocalCluster& cluster, int workers) {
  const Connection connection(cluster.server);
  const absl::Time deadline = absl::Now() + kStartTimeout;
  int registered = 0;
  while (absl::Now() < deadline) {
    v1::ListWorkersResponse response;
    const absl::Status status = connection.ListWorkers(v1::ListWorkersRequest(), response);
    registered = 0;
    for (const v1::Worker& worker : response.workers()) registered += worker.state() == v1::IDLE;
    if (status.ok() && registered >= workers) return absl::OkStatus();
    for (const LocalDaemon& daemon : cluster.daemons) {
      waitpid(daemon.pid, nullptr, WNOHANG);
      if (!IsRunning(daemon)) return DiedAtStart(daemon);
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      registered, " of ", workers, " workers registered (logs: ", cluster.directory, "/logs)"));
}

absl::Status WriteCluster(const LocalCluster& cluster) {
  json daemons = json::array();
  for (const LocalDaemon& daemon : cluster.daemons) {
    daemons.push_back({{"name", daemon.name},
                       {"pid", daemon.pid},
                       {"start_ticks", daemon.start_ticks},
                       {"log", daemon.log},
                       {"metrics", daemon.metrics}});
  }
  const json root = {{"server", cluster.server}, {"daemons", daemons}};
  RealFileSystem files;
  // A path need not be UTF-8; without `replace` dump would throw.
  return WriteFileAtomically(files, ClusterFile(cluster.directory),
                             root.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

bool AwaitEnd(const LocalDaemon& daemon, absl::Time deadline) {
  while (IsRunning(daemon)) {
    if (absl::Now() >= deadline) return false;
    waitpid(daemon.pid, nullptr, WNOHANG);
    absl::SleepFor(kPoll);
  }
  return true;
}

// Workers first, so that none of them sees its coordinator go.
void StopDaemons(const std::vector<LocalDaemon>& daemons) {
  const absl::Time deadline = absl::Now() + kStopTimeout;
  for (auto daemon = daemons.rbegin(); daemon != daemons.rend(); ++daemon) {
    const bool is_coordinator = std::next(daemon) == daemons.rend();
    if (is_coordinator) {
      for (const LocalDaemon& worker : daemons) {
        if (&worker != &*daemon) AwaitEnd(worker, deadline);
      }
    }
    if (IsRunning(*daemon)) kill(daemon->pid, SIGTERM);
  }
  for (const LocalDaemon& daemon : daemons) {
    if (AwaitEnd(daemon, deadline)) continue;
    kill(daemon.pid, SIGKILL);
    AwaitEnd(daemon, absl::Now() + kStopTimeout);
  }
}

absl::Status StartAll(const LocalClusterOptions& options, LocalCluster& cluster) {
  RETURN_IF_ERROR(StartCoordinator(options, cluster));
  RETURN_IF_ERROR(StartWorkers(options, cluster));
  RETURN_IF_ERROR(AwaitRegistration(cluster, options.workers));
  RETURN_IF_ERROR(WriteCluster(cluster));
  RealFileSystem files;
  RETURN_IF_ERROR(files.CreateDirectories(StateFolder()));
  return WriteFileAtomically(files, DefaultFile(), cluster.directory + "\n");
}

}  // namespace

bool IsRunning(const LocalDaemon& daemon) {
  return daemon.pid > 0 && daemon.start_ticks != 0 && StartTicks(daemon.pid) == daemon.start_ticks;
}

std::string DefaultLocalDirectory() { return StateFolder() + "/local"; }

absl::StatusOr<LocalCluster> StartLocalCluster(const LocalClusterOptions& options) {
  RealFileSystem files;
  LocalClusterOptions absolute = options;
  absolute.directory = AbsoluteFolder(options.directory);
  const absl::StatusOr<LocalCluster> existing = ReadLocalCluster(absolute.directory);
  if (existing.ok()) {
    for (const LocalDaemon& daemon : existing->daemons) {
      if (!IsRunning(daemon)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("a cluster runs in ", absolute.directory, " already, at ", existing->server,
                       "; stop it with `esteira local down --dir ", absolute.directory,
                       "` or choose another --dir"));
    }
  }
  RETURN_IF_ERROR(files.CreateDirectories(absolute.directory + "/logs"));
  LocalCluster cluster{.directory = absolute.directory, .server = "", .daemons = {}};
  if (absl::Status status = StartAll(absolute, cluster); !status.ok()) {
    StopDaemons(cluster.daemons);
    RETURN_IF_ERROR(files.RemoveAll(ClusterFile(cluster.directory)));
    return status;
  }
  return cluster;
}

absl::Status StopLocalCluster(const LocalCluster& cluster) {
  StopDaemons(cluster.daemons);
  RealFileSystem files;
  const absl::StatusOr<std::string> current = files.Read(DefaultFile());
  if (current.ok() && *current == cluster.directory + "\n") {
    RETURN_IF_ERROR(files.RemoveAll(DefaultFile()));
  }
  return files.RemoveAll(ClusterFile(cluster.directory));
}

absl::StatusOr<LocalCluster> ReadLocalCluster(const std::string& folder) {
  RealFileSystem files;
  const std::string directory = AbsoluteFolder(folder);
  const std::string path = ClusterFile(directory);
  if (!files.Exists(path)) {
    return absl::NotFoundError(absl::StrCat("no local cluster in ", directory));
  }
  ASSIGN_OR_RETURN(const std::string text, files.Read(path));
  const json root = json::parse(text, nullptr, false);
  const absl::Status bad =
      absl::DataLossError(absl::StrCat(path, " is not the file that `esteira local up` wrote"));
  LocalCluster cluster{.directory = directory, .server = TextOf(root, "server"), .daemons = {}};
  if (cluster.server.empty() || !root.contains("daemons") || !root["daemons"].is_array()) {
    return bad;
  }
  for (const json& daemon : root["daemons"]) {
    cluster.daemons.push_back(DecodeDaemon(daemon));
    if (!IsComplete(cluster.daemons.back())) return bad;
  }
  return cluster;
}

absl::StatusOr<LocalCluster> DefaultLocalCluster() {
  RealFileSystem files;
  if (!files.Exists(DefaultFile())) return absl::NotFoundError("no local cluster is up");
  ASSIGN_OR_RETURN(std::string directory, files.Read(DefaultFile()));
  while (!directory.empty() && directory.back() == '\n') directory.pop_back();
  return ReadLocalCluster(directory);
}

}  // namespace esteira
