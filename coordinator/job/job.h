#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/plan.h"
#include "coordinator/job/job_state.h"

namespace esteira {

struct JobTransition {
  JobState state = JobState::kQueued;
  std::string reason;
  std::string message;
  absl::Time time;
};

// Why a rank ended before its time.
struct FailureRecord {
  std::string worker;
  int rank = 0;
  int64_t epoch = 0;
  int64_t step = 0;
  std::string cause;
  bool consequence = false;  // an echo of the first cause on another rank
  absl::Time time;
};

struct CheckpointRecord {
  std::string path;
  int64_t step = 0;
  int64_t bytes = 0;
  absl::Time time;
  double save_seconds = 0;
  double stall_seconds = 0;
};

// What users are told of a job's plan.
struct PlanSummary {
  Layout layout;
  Prediction prediction;
  std::string digest;
};

// A job as it stands on disk: what the user asked for, how far it is, and how it came there. A
// value; knows no gRPC and no threads. The spec is kept in its wire form, exactly as it was
// submitted.
struct Job {
  std::string id;
  int64_t sequence = 0;  // the order of submission
  std::string name;
  std::string spec_bytes;
  std::string request_id;  // empty: none
  int64_t priority = 0;
  JobState state = JobState::kQueued;
  std::string reason;   // UPPER_SNAKE_CASE, stable
  std::string message;  // one sentence for people
  int64_t epoch = 0;    // 0: no worker group yet
  absl::Time submit_time;
  std::optional<absl::Time> start_time;
  std::optional<absl::Time> end_time;
  int64_t step = 0;
  double loss = 0;
  double validation_loss = 0;
  std::vector<std::string> workers;  // by rank
  std::optional<PlanSummary> plan;
  double peak_flops = 0;  // of all ranks together; 0: not known
  double flops_per_token = 0;
  std::vector<JobTransition> transitions;
  std::vector<FailureRecord> failures;  // the first cause first
};

// Moves `job` to `state` and records it. The edge must be allowed.
const JobTransition& Transition(Job& job, JobState state, const std::string& reason,
                                const std::string& message, absl::Time now);

// An event that leaves the job in its state: it has the last word on the job, too.
const JobTransition& Note(Job& job, const std::string& reason, const std::string& message,
                          absl::Time now);

// A new job in state QUEUED.
Job MakeQueuedJob(int64_t sequence, absl::Time now);

}  // namespace esteira
