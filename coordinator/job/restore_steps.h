#pragma once

#include "absl/status/status.h"
#include "coordinator/job/data_directory.h"
#include "coordinator/job/job_store.h"

namespace esteira {

// Appends to steps.jsonl of every job what the store has and the file has not: the lines that a
// crash between a commit and its lines left out. A job that is over and has no such file is left
// alone: someone may have removed it. Before anything else writes to the folder. Sample ids are not
// in the store and cannot be brought back.
absl::Status RestoreStepLines(JobStore& store, DataDirectory& directory);

}  // namespace esteira
