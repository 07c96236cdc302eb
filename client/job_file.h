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
// the file's own folder, so that a job means the same wherever it is submitted from.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& overrides);

}  // namespace esteira
