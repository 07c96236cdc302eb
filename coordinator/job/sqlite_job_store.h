#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/job/job_store.h"
#include "coordinator/job/sqlite.h"

namespace esteira {

// Jobs in one SQLite file in WAL mode with synchronous=FULL: a commit is one transaction and one
// fsync. One connection writes and one reads, so that readers never wait for the disk. The schema
// has a version; a newer one is refused.
class SqliteJobStore : public JobStore {
 public:
  // Creates the file when it is not there. DataLoss when it is damaged, FailedPrecondition when a
  // newer release wrote it.
  static absl::StatusOr<std::unique_ptr<SqliteJobStore>> Open(const std::string& path);

  absl::Status Commit(const std::vector<JobWrite>& writes) override;
  absl::StatusOr<Job> Get(const std::string& id) override;
  absl::StatusOr<std::optional<Job>> FindRequest(const std::string& request_id) override;
  absl::StatusOr<JobPage> List(int page_size, const std::string& page_token) override;
  absl::StatusOr<std::vector<Job>> ListActive() override;
  absl::StatusOr<std::map<std::string, int64_t>> CountByState() override;
  absl::StatusOr<int64_t> LastSequence() override;
  absl::StatusOr<std::vector<StepRecord>> ListSteps(const std::string& id, int64_t first_step,
                                                    int limit) override;
  absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& id) override;

 private:
  SqliteJobStore() = default;

  absl::Status Prepare(const std::string& path);

  absl::Mutex write_mutex_;
  SqliteDatabase writer_ ABSL_GUARDED_BY(write_mutex_);
  absl::Mutex read_mutex_;
  SqliteDatabase reader_ ABSL_GUARDED_BY(read_mutex_);
};

}  // namespace esteira
