#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/observability/worker_metrics.h"
#include "esteira/v1/worker.pb.h"
#include "worker/agent/session.h"
#include "worker/agent/trainer_process.h"
#include "worker/trainer/compute_rates.h"

namespace esteira {

struct AgentOptions {
  SessionOptions session;
  std::string host;
  std::string device = "cpu";
  int64_t memory_bytes = 0;
  int threads = 1;
  ComputeRates rates;
  std::string version;
  std::vector<std::string> trainer_command;       // run for each epoch
  absl::Duration abort_grace = absl::Seconds(5);  // from the abort to SIGKILL
  absl::Duration orphan_timeout =
      absl::Minutes(10);  // without a coordinator for so long, the trainer is killed
};

// The worker daemon: keeps the session with the coordinator, starts one trainer process for each
// epoch that it is given, passes messages between the two, and reports how the trainer ended. It
// touches no tensor. Its state belongs to the thread inside Run; callbacks post events to it.
class Agent {
 public:
  Agent(AgentOptions options, WorkerMetrics& metrics, Logger log);
  ~Agent();

  // Until Stop, or until the coordinator refuses this worker (FailedPrecondition with its reason).
  absl::Status Run();
  // Ends Run: the trainer is killed. Any thread.
  void Stop();

 private:
  using Event = std::function<void()>;

  void Post(Event event);
  void RunEvents();
  absl::Time NextTimer() const;
  void OnTimer(absl::Time now);

  void OnMessage(const v1::CoordinatorMessage& message);
  void OnConfigure(const v1::CoordinatorMessage& message);
  void OnAbort(const v1::Abort& abort);
  void OnConnection(bool connected);
  void OnReport(int64_t life, v1::TrainerReport report);
  // On the trainer's thread: a flood of lines must not pile up as events.
  void OnOutput(v1::TrainerReport report, std::string line);
  void OnExit(int64_t life, v1::Exited exited);

  void StartTrainer(const v1::CoordinatorMessage& message);
  // A report about the current place in the current epoch.
  v1::TrainerReport NewReport() const;
  v1::Register Registration() const;
  bool IsCurrent(const std::string& job_id, int64_t epoch) const;

  const AgentOptions options_;
  WorkerMetrics& metrics_;
  const Logger log_;

  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);

  // Owned by Run's thread.
  bool stopping_ = false;
  absl::Status refusal_;
  int64_t life_ = 0;  // counts trainers: late callbacks of an earlier one are told apart
  std::unique_ptr<TrainerProcess> trainer_;
  std::string job_id_;
  int64_t epoch_ = 0;
  int32_t rank_ = 0;
  absl::Time kill_time_ = absl::InfiniteFuture();
  absl::Time orphan_time_ = absl::InfiniteFuture();
  std::unique_ptr<v1::CoordinatorMessage>
      waiting_configure_;  // came while the trainer before was still ending
  std::unique_ptr<Session> session_;
};

}  // namespace esteira
