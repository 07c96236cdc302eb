#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/job/step_record.h"

namespace esteira {

// The coordinator's folder: <root>/lock, <root>/jobs.sqlite, and per job <root>/jobs/<id>/ with
// steps.jsonl, samples.jsonl and logs/<rank>.log. Holds the lock while it lives, so that two
// coordinators never share one folder. The files are copies for people and tools; the database is
// the truth. Appends come from one thread; reads from any.
class DataDirectory {
 public:
  static constexpr int64_t kMaxLogBytes = 256 << 20;  // of one rank of one job

  // Creates the folder. FailedPrecondition when another coordinator holds it.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Open(const std::string& root,
                                                             int64_t max_log_bytes = kMaxLogBytes);
  ~DataDirectory();
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  std::string DatabasePath() const;
  std::string JobFolder(const std::string& job_id) const;
  std::string LogFolder(const std::string& job_id) const;

  // A line as `esteira steps -o jsonl` prints it.
  absl::Status AppendStep(const std::string& job_id, const StepRecord& record);
  // The step of the last line that was written whole; 0 when there is none. What a crash left of a
  // line behind it is cut off.
  absl::StatusOr<int64_t> LastStep(const std::string& job_id);
  absl::Status AppendSampleIds(const std::string& job_id, int64_t step, int64_t epoch,
                               const std::vector<int64_t>& sample_ids);
  // A line of a rank's output: "<time> <worker> <text>". Line ends inside `text` become spaces; it
  // is cut at 64 KiB. A log that has reached its limit says so in a last line and takes no more.
  absl::Status AppendLog(const std::string& job_id, int rank, const std::string& worker,
                         absl::Time time, absl::string_view text);

 private:
  DataDirectory(std::string root, int lock_fd, int64_t max_log_bytes);

  // All of `lines` or nothing.
  absl::Status Append(const std::string& folder, const std::string& name, absl::string_view lines);

  const std::string root_;
  const int lock_fd_;
  const int64_t max_log_bytes_;
};

}  // namespace esteira
