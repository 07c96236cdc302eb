#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/membership/failure_detector.h"

namespace esteira {

enum class WorkerState { kIdle, kBusy, kLost };
inline constexpr size_t kNumWorkerStates = 3;
const char* WorkerStateName(WorkerState state);  // "IDLE"

// What a worker says of itself when it registers. `incarnation` names one life of its process.
struct WorkerDescription {
  std::string id;
  uint64_t incarnation = 0;
  std::string host;
  std::string device;
  int64_t memory_bytes = 0;
  int threads = 0;
  // What the device achieves, measured or given; 0: not known.
  double flops_fp32 = 0;
  double flops_bf16 = 0;
  double memory_bytes_per_second = 0;
  double pass_seconds = 0;  // synthetic: each pass of a block takes so long
  std::string version;
};

// A place in a job's worker group.
struct Assignment {
  std::string job_id;
  int64_t epoch = 0;
  int rank = 0;
  bool operator==(const Assignment&) const = default;
};

struct WorkerRecord {
  WorkerDescription description;
  int64_t session = 0;  // of its open stream; 0: none
  absl::Time last_seen;
  std::optional<Assignment> assignment;
  bool lost = false;
  std::string message;  // why it is lost

  bool connected() const { return session != 0; }
  WorkerState state() const;
};

// The table of workers: who is there, in which life, with which lease, holding which place. A lost
// worker keeps its row until it is forgotten. Pure: a value that is told the time; no threads, no
// streams, no jobs.
class Membership {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(10);
    absl::Duration forget_after = absl::Hours(1);
  };

  // What a registration changed.
  struct Registration {
    int64_t replaced_session = 0;         // a stream that is over now; 0: none
    std::optional<Assignment> abandoned;  // the place that the earlier life of the process held
  };

  explicit Membership(const Options& options) : options_(options) {}

  // A new worker, a new life of a known one (which ends the old), or the same life on a new stream.
  // InvalidArgument for a bad id; FailedPrecondition for a life that has already been replaced;
  // AlreadyExists for another life while this one is connected and within its lease.
  absl::StatusOr<Registration> Register(const WorkerDescription& description, int64_t session,
                                        absl::Time now);
  // Whether a message on `session` belongs to the worker's present life; if so its lease begins
  // anew.
  bool Touch(const std::string& id, uint64_t incarnation, int64_t session, absl::Time now);
  // Every worker that is not lost gets a whole lease from `now` on.
  void RenewLeases(absl::Time now);
  // The stream ended. The lease runs on.
  void Disconnect(int64_t session);

  void Assign(const std::string& id, const Assignment& assignment);
  void Release(const std::string& id);
  void MarkLost(const std::string& id, const std::string& reason);
  // A row for a worker that is known by name only and does not come; nothing when it has one.
  void AddLost(const std::string& id, const std::string& reason, absl::Time now);
  void Forget(const std::string& id);

  // Before this time nobody's lease ends, and nobody is to be forgotten: it need not be looked for.
  absl::Time quiet_until() const { return quiet_until_; }
  // Moves it on, once it has passed, by a look at every worker.
  void UpdateQuiet(absl::Time now);

  const WorkerRecord* Find(const std::string& id) const;
  const std::map<std::string, WorkerRecord>& workers() const { return workers_; }
  Assessment AssessWorker(const WorkerRecord& worker, absl::Time now) const;
  // Idle, connected and beyond suspicion, by id.
  std::vector<std::string> ListAvailable(absl::Time now) const;
  int Count(WorkerState state) const { return counts_[static_cast<size_t>(state)]; }
  int CountPresent() const { return Count(WorkerState::kIdle) + Count(WorkerState::kBusy); }

 private:
  static constexpr size_t kMaxRetired = 16;

  bool IsHeldByAnother(const WorkerRecord& worker, const WorkerDescription& newcomer,
                       int64_t session, absl::Time now) const;

  // Edits a worker that is counted, and counts it anew.
  template <typename Edit>
  void Change(WorkerRecord& worker, const Edit& edit);
  void SetSession(WorkerRecord& worker, int64_t session);

  // When silence changes something about a worker.
  absl::Time DueTime(const WorkerRecord& worker) const;

  const Options options_;
  absl::Time quiet_until_ = absl::InfiniteFuture();
  std::map<std::string, WorkerRecord> workers_;
  // What is asked at every turn must not take a look at every worker.
  std::array<int, kNumWorkerStates> counts_{};
  std::unordered_map<int64_t, std::string> worker_of_session_;
  std::map<std::string, std::deque<uint64_t>> retired_;  // replaced incarnations, the latest last
};

}  // namespace esteira
