#include "coordinator/job/job_state.h"

#include <algorithm>
#include <utility>

namespace esteira {
namespace {

using Edge = std::pair<JobState, JobState>;

constexpr std::array kEdges = {
    Edge{JobState::kQueued, JobState::kPlanning},    Edge{JobState::kQueued, JobState::kFailed},
    Edge{JobState::kQueued, JobState::kCancelled},   Edge{JobState::kPlanning, JobState::kStarting},
    Edge{JobState::kPlanning, JobState::kQueued},    Edge{JobState::kPlanning, JobState::kFailed},
    Edge{JobState::kPlanning, JobState::kCancelled}, Edge{JobState::kStarting, JobState::kRunning},
    Edge{JobState::kStarting, JobState::kQueued},    Edge{JobState::kStarting, JobState::kStopping},
    Edge{JobState::kStarting, JobState::kFailed},    Edge{JobState::kRunning, JobState::kStopping},
    Edge{JobState::kRunning, JobState::kSucceeded},  Edge{JobState::kRunning, JobState::kFailed},
    Edge{JobState::kStopping, JobState::kCancelled},
};

}  // namespace

const char* JobStateName(JobState state) {
  switch (state) {
    case JobState::kQueued: return "QUEUED";
    case JobState::kPlanning: return "PLANNING";
    case JobState::kStarting: return "STARTING";
    case JobState::kRunning: return "RUNNING";
    case JobState::kRecovering: return "RECOVERING";
    case JobState::kStopping: return "STOPPING";
    case JobState::kPaused: return "PAUSED";
    case JobState::kSucceeded: return "SUCCEEDED";
    case JobState::kFailed: return "FAILED";
    case JobState::kCancelled: return "CANCELLED";
  }
  return "?";
}

bool IsTerminal(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

bool IsAllowed(JobState from, JobState to) {
  return std::find(kEdges.begin(), kEdges.end(), Edge{from, to}) != kEdges.end();
}

}  // namespace esteira
