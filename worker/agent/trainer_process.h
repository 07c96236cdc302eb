#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "esteira/v1/worker.pb.h"
#include "worker/trainer/channel.h"

namespace esteira {

// One life of a trainer: a child process of the worker daemon, so that a hung device call never
// hangs the daemon. Owns the process, the channel to it and four threads (messages to it, messages
// from it, its output, its end). Callbacks come from these threads; on_exit comes last, exactly
// once. The child leads a process group of its own: what it started ends with it.
class TrainerProcess {
 public:
  struct Callbacks {
    std::function<void(v1::TrainerReport)> on_report;
    // A line of its standard output or error, as valid UTF-8; long lines come in pieces.
    std::function<void(std::string line)> on_output;
    std::function<void(v1::Exited)> on_exit;
  };

  // `command` is run with the channel as descriptor 3. Call from a thread that outlives the child.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Spawn(
      const std::vector<std::string>& command, Callbacks callbacks);
  // Kills the child if it still runs, and waits for its end.
  ~TrainerProcess();

  // Never blocks. What a trainer that ends has not read is lost; its exit is reported anyway.
  void Send(v1::CoordinatorMessage message);
  // SIGKILL. Any thread; after the end it does nothing.
  void Kill();
  int pid() const { return pid_; }

 private:
  TrainerProcess(int pid, int channel_fd, int output_fd, Callbacks callbacks);
  void WriteMessages();
  void ReadReports();
  void ReadOutput();
  void GiveUp(const absl::Status& status);
  void AwaitEnd();

  const int pid_;
  const int output_fd_;
  const Callbacks callbacks_;
  const long oom_kills_before_;
  std::unique_ptr<Channel> channel_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::CoordinatorMessage> to_send_ ABSL_GUARDED_BY(mutex_);
  std::thread send_thread_, report_thread_, output_thread_, end_thread_;
};

}  // namespace esteira
