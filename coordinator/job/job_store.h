#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/job/job.h"
#include "coordinator/job/step_record.h"

namespace esteira {

// Changes to what is stored, as data.
struct InsertJob {
  Job job;
};
// Everything of the job but its spec and request, with the whole of its failures; transitions are
// appended apart.
struct UpdateJob {
  Job job;
};
struct AppendTransition {
  std::string job_id;
  JobTransition transition;
};
struct AppendStep {
  std::string job_id;
  StepRecord record;
};
struct AppendCheckpoint {
  std::string job_id;
  CheckpointRecord checkpoint;
};
using JobWrite = std::variant<InsertJob, UpdateJob, AppendTransition, AppendStep, AppendCheckpoint>;

struct JobPage {
  std::vector<Job> jobs;        // newest first
  std::string next_page_token;  // empty: no more
};

// Where jobs outlive the coordinator. Thread-safe; reads see whole commits only.
class JobStore {
 public:
  virtual ~JobStore() = default;

  // All of `writes` or none of them; on disk when it returns OK. ResourceExhausted: the disk is
  // full. Unavailable: the disk or another process is in the way. DataLoss: the file is damaged.
  virtual absl::Status Commit(const std::vector<JobWrite>& writes) = 0;

  virtual absl::StatusOr<Job> Get(const std::string& id) = 0;  // NotFound
  virtual absl::StatusOr<std::optional<Job>> FindRequest(const std::string& request_id) = 0;
  // InvalidArgument for a token that List did not give. `page_size` is at least 1.
  virtual absl::StatusOr<JobPage> List(int page_size, const std::string& page_token) = 0;
  virtual absl::StatusOr<std::vector<Job>>
  ListActive() = 0;  // not terminal, in order of submission
  virtual absl::StatusOr<std::map<std::string, int64_t>> CountByState() = 0;  // by the state's name
  virtual absl::StatusOr<int64_t> LastSequence() = 0;                         // 0: no job yet
  // Records from `first_step` on, at most `limit`, in order.
  virtual absl::StatusOr<std::vector<StepRecord>> ListSteps(const std::string& id,
                                                            int64_t first_step, int limit) = 0;
  virtual absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& id) = 0;
};

}  // namespace esteira
