// The checkpoint directory before a job's first step: what would end the job at its first save must
// end it at its start.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace esteira {

// Makes `directory`, and fails, naming it and the reason, unless a file can be written there, made
// durable and removed. For each rank that will write; `rank` keeps their files apart.
absl::Status ProbeDirectory(FileSystem& files, const std::string& directory, int rank);

// For the rank that publishes, held as long as it may: two jobs in one directory would remove each
// other's temporary folders. FailedPrecondition when another job holds it.
absl::StatusOr<std::unique_ptr<FileLock>> LockDirectory(FileSystem& files,
                                                        const std::string& directory);

}  // namespace esteira
