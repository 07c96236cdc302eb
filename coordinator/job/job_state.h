// clang-format off
// The life of a job.
//
//   QUEUED ──1──> PLANNING ──2──> STARTING ──3──> RUNNING ──4──> SUCCEEDED
//     ^              │               │               │
//     └──────5───────┴───────5───────┘               │
//     │              │               │               │
//     │              ├───────6───────┼───────6───────┼──> FAILED  (from QUEUED too)
//     │              │               │               │
//     │              │               └───────7───────┴──> STOPPING ──8──> CANCELLED
//     └──────9───────┴───────────────────────────────────────────────────────^
//
//   1 enough workers are idle
//   2 the plan is made, its workers are told
//   3 every rank is ready
//   4 every trainer left with 0
//   5 the coordinator restarted before training began
//   6 the first cause is known: no plan, a rank failed, a worker is lost, ranks disagree
//   7 the user cancels
//   8 every trainer has left, or its time to do so is over
//   9 the user cancels before any trainer exists
//
// SUCCEEDED, FAILED and CANCELLED are terminal. No edge leads to RECOVERING or PAUSED.
// clang-format on
#pragma once

#include <array>
#include <cstdint>

namespace esteira {

enum class JobState : uint8_t {
  kQueued,
  kPlanning,
  kStarting,
  kRunning,
  kRecovering,
  kStopping,
  kPaused,
  kSucceeded,
  kFailed,
  kCancelled,
};
inline constexpr std::array kJobStates = {
    JobState::kQueued,     JobState::kPlanning, JobState::kStarting, JobState::kRunning,
    JobState::kRecovering, JobState::kStopping, JobState::kPaused,   JobState::kSucceeded,
    JobState::kFailed,     JobState::kCancelled};

const char* JobStateName(JobState state);  // "QUEUED"
bool IsTerminal(JobState state);
// Whether the drawing above has an edge from `from` to `to`.
bool IsAllowed(JobState from, JobState to);

}  // namespace esteira
