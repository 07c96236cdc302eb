#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/observability/coordinator_metrics.h"
#include "coordinator/controller/job_planner.h"
#include "coordinator/controller/state.h"
#include "coordinator/controller/turn.h"
#include "coordinator/controller/worker_messages.h"
#include "coordinator/job/data_directory.h"
#include "coordinator/job/job_store.h"

namespace esteira {

struct SubmitRequest {
  std::string spec_bytes;
  std::string request_id;  // empty: none
  int64_t priority = 0;
  bool validate_only = false;
};

// The coordinator's one mind: a thread that owns all state. Calls from any thread post events and
// return at once; answers come on the controller's thread and must not block. A turn is: apply the
// events that came, decide and execute until nothing is left to do, make it durable in one commit,
// and only then answer, send and wake watchers. When the disk fails, what follows from the turn is
// held back and tried again, submissions are refused, and time stands still for decisions: held
// reports keep streams from being read, so that silence says nothing.
//
// Job data is read from the store; the controller gives a sign when there is more (Watch).
class Controller {
 public:
  struct Parts {  // all outlive the controller
    Clock& clock;
    JobStore& store;
    DataDirectory& directory;
    JobPlanner& planner;
    CoordinatorMetrics& metrics;
  };

  Controller(const ControllerOptions& options, const Parts& parts, Logger log);
  ~Controller();

  // Finds the jobs of the last life, then starts the thread.
  absl::Status Start();
  // No answer comes after it; what was posted and not yet handled is dropped. Once.
  void Stop();

  // The job as it was stored; of an earlier request with the same id and content, that one.
  void Submit(SubmitRequest request, std::function<void(absl::StatusOr<Job>)> done);
  // The job as it is after the request was taken note of. FailedPrecondition when it is over
  // otherwise.
  void Cancel(std::string job_id, std::function<void(absl::StatusOr<Job>)> done);
  void ListWorkers(std::function<void(std::vector<WorkerRecord>)> done);

  // A worker's stream: Open gives its number, then its messages in order, then Close. `handled`
  // follows each message.
  int64_t OpenSession(std::shared_ptr<WorkerSession> session);
  void Receive(int64_t session, WorkerMessage message, std::function<void()> handled);
  void CloseSession(int64_t session);

  // `wake` is called after each change of the job (state, step, log, checkpoint) until Unwatch, and
  // once at Stop.
  int64_t Watch(const std::string& job_id, std::function<void()> wake);
  // When it returns, `wake` is not running and will not run again. Not from within `wake`.
  void Unwatch(int64_t watch);

  // Looks at the clock now instead of at the next tick.
  void Tick();

 private:
  using Event = std::function<void(Turn&)>;

  absl::Status Recover();
  void RecoverJob(Turn& turn, Job job);
  void Run();
  void TakeTurn(const std::vector<std::pair<absl::Time, Event>>& events);
  void Settle(Turn& turn);
  void NoteCommit(const absl::Status& status, absl::Time began);
  void AddAcknowledgements(Turn& turn);
  bool Flush();
  absl::Status Commit(const std::vector<JobWrite>& writes);
  void Deliver(const Outbox& out);
  void Answer(const Outbox& out);
  void WriteLogs(const std::vector<LogLine>& lines);
  void WriteSteps(const std::vector<StepLine>& lines);
  void NoteLines(const absl::Status& status);
  void UpdateGauges();
  void Post(Event event);
  absl::Duration TickInterval() const;

  // Submission, in steps.
  absl::StatusOr<Job> HandleSubmit(Turn& turn, const SubmitRequest& request);
  absl::StatusOr<ActiveJob> CheckJob(const SubmitRequest& request);
  absl::StatusOr<Job> FindEnded(const std::string& job_id);

  const ControllerOptions options_;
  const Parts parts_;
  const Logger log_;

  // Owned by the thread.
  State state_;
  std::vector<Outbox> held_;                 // not yet durable, in order
  std::optional<absl::Time> failing_since_;  // the disk
  bool line_failed_ = false;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<absl::Time, Event>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<WorkerSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  int64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;

  absl::Mutex watch_mutex_;  // held while watchers are woken
  int64_t next_watch_ ABSL_GUARDED_BY(watch_mutex_) = 1;
  std::map<std::string, std::map<int64_t, std::function<void()>>> watches_
      ABSL_GUARDED_BY(watch_mutex_);
  std::map<int64_t, std::string> watched_jobs_ ABSL_GUARDED_BY(watch_mutex_);

  std::thread thread_;
};

}  // namespace esteira
