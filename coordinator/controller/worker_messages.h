// What travels between the controller and workers, without its wire form.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/job/job.h"
#include "coordinator/job/step_record.h"
#include "coordinator/membership/membership.h"

namespace esteira {

// From a worker. `running`: the place of a trainer that it still has.
struct RegisterMessage {
  WorkerDescription description;
  std::optional<Assignment> running;
};
struct HeartbeatMessage {};

struct ReadyReport {
  std::string address;
  std::string transport_version;
  double peak_flops = 0;
};
// One rank's view of a step: its own times and ratios; loss, norm and tokens are everybody's.
struct StepPart {
  StepRecord record;
  std::optional<uint64_t> hash_part;
  std::optional<MemoryUse> memory;
  std::vector<int64_t> sample_ids;
};
struct LogReport {
  absl::Time time;
  std::string text;
};
struct ExitReport {
  int exit_code = 0;
  int signal = 0;
  bool out_of_memory = false;
  std::string message;
};
struct FailedReport {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  bool consequence = false;
  int64_t step = 0;
};
// Becomes an event of the job. `step`: where the job stands.
struct NoticeReport {
  std::string reason;
  std::string message;
  std::optional<int64_t> step;
};
struct TrainerReport {
  Assignment place;
  std::variant<ReadyReport, StepPart, LogReport, CheckpointRecord, NoticeReport, ExitReport,
               FailedReport>
      body;
};

struct WorkerMessage {
  std::string worker_id;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  // of reports, rising within an incarnation; 0: not a report
  std::variant<RegisterMessage, HeartbeatMessage, TrainerReport> body;
};

// To a worker.
struct RegisteredCommand {
  absl::Duration lease;
  absl::Duration heartbeat;
};
struct ConfigureCommand {
  Assignment place;
  std::shared_ptr<const std::string> spec_bytes;
  std::shared_ptr<const std::string> plan_bytes;
  absl::Duration operation_timeout;
};
struct StartCommand {
  std::string job_id;
  int64_t epoch = 0;
  std::vector<std::string> addresses;  // by rank
  std::vector<std::string> transport_versions;
};
struct AbortCommand {
  std::string job_id;
  int64_t epoch = 0;
  std::string message;
};
struct RefusedCommand {
  std::string message;
};
struct AcknowledgedCommand {
  uint64_t sequence = 0;
};
using WorkerCommand = std::variant<RegisteredCommand, ConfigureCommand, StartCommand, AbortCommand,
                                   RefusedCommand, AcknowledgedCommand>;

// One open stream to a worker, as the controller sees it. Calls never block, come from the
// controller's thread, and may come after the stream has ended; then they do nothing.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  virtual void Send(const WorkerCommand& command) = 0;
  // Ends the stream after what was sent before.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace esteira
