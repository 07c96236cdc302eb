#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "esteira/v1/worker.pb.h"

namespace esteira {

struct SessionOptions {
  std::string coordinator;  // host:port
  std::string worker_id;
  uint64_t incarnation = 0;
  absl::Duration first_backoff = absl::Milliseconds(200);
  absl::Duration last_backoff = absl::Seconds(5);
  size_t kept_reports = 10000;  // unacknowledged ones, kept for a coordinator that comes back
  // Of unacknowledged log lines, each counted with 512 bytes more than its text; what comes beyond
  // is dropped, so that a flood of lines neither fills the memory nor pushes other reports out.
  size_t kept_log_bytes = 4 << 20;
};

// The worker's one stream to its coordinator: opens it, registers, beats, opens it again when it
// breaks, and sends reports that were not acknowledged once more. Reports keep their order and
// their sequence numbers. Owns two threads; callbacks come from one of them and must not block.
// Thread-safe.
class Session {
 public:
  struct Callbacks {
    std::function<void(v1::CoordinatorMessage)> on_message;
    std::function<void(bool connected)> on_connection;
  };

  Session(SessionOptions options, v1::Register registration, Callbacks callbacks, Logger log);
  ~Session();

  // False when it was a log line for which there is no room: it is dropped and counted, and a line
  // before the next report says how many were.
  bool Report(v1::TrainerReport report);
  // What the next registration says.
  void SetRegistration(v1::Register registration);
  // Waits until the coordinator has acknowledged every report, or for `timeout`.
  void Flush(absl::Duration timeout);

 private:
  struct Connection;

  void Run();
  // One life of the stream, from registration to its break.
  void Serve();
  void ReadMessages(Connection& connection);
  void WriteMessages(Connection& connection);
  void Handle(v1::CoordinatorMessage message);
  v1::WorkerMessage Envelope(uint64_t sequence) const;
  void Keep(v1::TrainerReport report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions options_;
  const Callbacks callbacks_;
  const Logger log_;

  absl::Mutex mutex_;
  v1::Register registration_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(2);
  std::deque<v1::WorkerMessage> reports_ ABSL_GUARDED_BY(mutex_);  // not acknowledged, by sequence
  size_t log_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                   // of the log lines among them
  // The log lines that were dropped since the last report, and one of them without its text.
  int64_t dropped_lines_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::TrainerReport dropped_line_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_to_send_ ABSL_GUARDED_BY(mutex_) = 1;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace esteira
