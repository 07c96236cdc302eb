#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "esteira/v1/job.pb.h"

namespace esteira {

struct JobFile {
  v1::JobSpec proto;
  JobSpec spec;
};

// Reads and checks a job file; every fault is in the status. Relative paths in it are taken from
// the file's own folder, so that a job means the same wherever it is submitted from. The file that
// a schedule csv:PATH names is read too. `schedule`, unless empty, is the pipeline schedule instead
// of the job's; its path is taken from the current folder.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& overrides,
                                    const std::string& schedule = "");

}  // namespace esteira
