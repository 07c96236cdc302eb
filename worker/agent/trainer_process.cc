#include "worker/agent/trainer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

extern char** environ;

namespace esteira {
namespace {

constexpr size_t kMaxOutputLine = 16 << 10;

absl::Status SystemError(absl::string_view what, int error) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", std::strerror(error)));
}

// Kills by the kernel's out-of-memory killer in this cgroup, or -1 when the kernel does not say.
long CountOomKills() {
  std::ifstream events("/sys/fs/cgroup/memory.events");
  std::string name;
  long count = 0;
  while (events >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return -1;
}

// The longest start of `text` of at most `limit` bytes that does not cut a character of UTF-8.
size_t CutBetweenCharacters(const std::string& text, size_t limit) {
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  size_t cut = limit;
  while (cut > limit - 3 && continues(cut)) --cut;
  return continues(cut) ? limit : cut;
}

std::string DescribeSignal(int signal) {
  const char* name = sigabbrev_np(signal);
  return absl::StrCat("trainer killed by signal ", signal,
                      name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

struct Pipes {
  int channel[2] = {-1, -1};
  int output[2] = {-1, -1};
};

absl::StatusOr<Pipes> OpenPipes() {
  Pipes pipes;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pipes.channel) != 0) {
    return SystemError("open a socket pair for a trainer", errno);
  }
  if (pipe2(pipes.output, O_CLOEXEC) != 0) {
    const int error = errno;
    close(pipes.channel[0]);
    close(pipes.channel[1]);
    return SystemError("open a pipe for a trainer", error);
  }
  return pipes;
}

absl::StatusOr<int> SpawnChild(const std::vector<std::string>& command, const Pipes& pipes) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const auto destroy = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipes.output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipes.output[1], STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipes.channel[1], kChannelDescriptor);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  if (error != 0) return SystemError(absl::StrCat("start the trainer ", command[0]), error);
  return pid;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerProcess>> TrainerProcess::Spawn(
    const std::vector<std::string>& command, Callbacks callbacks) {
  ASSIGN_OR_RETURN(const Pipes pipes, OpenPipes());
  absl::StatusOr<int> pid = SpawnChild(command, pipes);
  close(pipes.channel[1]);
  close(pipes.output[1]);
  if (!pid.ok()) {
    close(pipes.channel[0]);
    close(pipes.output[0]);
    return pid.status();
  }
  return std::unique_ptr<TrainerProcess>(
      new TrainerProcess(*pid, pipes.channel[0], pipes.output[0], std::move(callbacks)));
}

TrainerProcess::TrainerProcess(int pid, int channel_fd, int output_fd, Callbacks callbacks)
    : pid_(pid),
      output_fd_(output_fd),
      callbacks_(std::move(callbacks)),
      oom_kills_before_(CountOomKills()),
      channel_(std::make_unique<Channel>(channel_fd)) {
  send_thread_ = std::thread([this] { WriteMessages(); });
  report_thread_ = std::thread([this] { ReadReports(); });
  output_thread_ = std::thread([this] { ReadOutput(); });
  end_thread_ = std::thread([this] { AwaitEnd(); });
}

TrainerProcess::~TrainerProcess() {
  Kill();
  end_thread_.join();
}

void TrainerProcess::Kill() {
  absl::MutexLock lock(&mutex_);
  if (!ended_) kill(-pid_, SIGKILL);
}

void TrainerProcess::Send(v1::CoordinatorMessage message) {
  absl::MutexLock lock(&mutex_);
  to_send_.push_back(std::move(message));
}

void TrainerProcess::WriteMessages() {
  while (true) {
    v1::CoordinatorMessage message;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ended_ || !to_send_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (ended_) return;
      message = std::move(to_send_.front());
      to_send_.pop_front();
    }
    const absl::Status status = channel_->Write(message);
    if (absl::IsUnavailable(status)) return;  // it is ending
    if (!status.ok()) GiveUp(status);
  }
}

// A trainer that cannot be talked to would wait for ever.
void TrainerProcess::GiveUp(const absl::Status& status) {
  callbacks_.on_output(absl::StrCat("killed by its daemon: ", status.message()));
  Kill();
}

void TrainerProcess::ReadReports() {
  while (true) {
    v1::TrainerReport report;
    const absl::Status status = channel_->Read(report);
    if (status.ok()) {
      callbacks_.on_report(std::move(report));
      continue;
    }
    if (!absl::IsUnavailable(status)) GiveUp(status);
    return;
  }
}

void TrainerProcess::ReadOutput() {
  std::string pending;
  char bytes[4096];
  for (ssize_t got; (got = read(output_fd_, bytes, sizeof bytes)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    pending.append(bytes, static_cast<size_t>(got));
    for (size_t end;
         (end = pending.find('\n')) != std::string::npos || pending.size() > kMaxOutputLine;) {
      const bool whole = end <= kMaxOutputLine;
      if (!whole) end = CutBetweenCharacters(pending, kMaxOutputLine);
      callbacks_.on_output(ReplaceInvalidUtf8(pending.substr(0, end)));
      pending.erase(0, whole ? end + 1 : end);
    }
  }
  if (!pending.empty()) callbacks_.on_output(ReplaceInvalidUtf8(pending));
  close(output_fd_);
}

void TrainerProcess::AwaitEnd() {
  // Wait without reaping first: until `ended_` is set the pid must not be given to another process.
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  int status = 0;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    kill(-pid_, SIGKILL);  // what it started and left behind
    waitpid(pid_, &status, 0);
  }
  send_thread_.join();  // the child's ends are closed: nothing can block on them any more
  report_thread_.join();
  output_thread_.join();
  v1::Exited exited;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    exited.set_signal(signal);
    exited.set_out_of_memory(signal == SIGKILL && oom_kills_before_ >= 0 &&
                             CountOomKills() > oom_kills_before_);
    exited.set_message(
        absl::StrCat(DescribeSignal(signal), exited.out_of_memory() ? ": out of memory" : ""));
  } else {
    exited.set_exit_code(WEXITSTATUS(status));
    exited.set_message(absl::StrCat("trainer exited with code ", WEXITSTATUS(status)));
  }
  callbacks_.on_exit(std::move(exited));
}

}  // namespace esteira
