#include "coordinator/job/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/rpc/json.h"
#include "coordinator/job/job_messages.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {
namespace {

constexpr size_t kMaxLogLineBytes = 64 << 10;

absl::Status FileError(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot write ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  if (error == EACCES || error == EPERM || error == EROFS)
    return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(const std::string& root) {
  RETURN_IF_ERROR(RealFileSystem().CreateDirectories(absl::StrCat(root, "/jobs")));
  const std::string path = absl::StrCat(root, "/lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("another coordinator uses ", root, ": stop it, or choose another --data_dir"));
  }
  return std::unique_ptr<DataDirectory>(new DataDirectory(root, fd));
}

DataDirectory::DataDirectory(std::string root, int lock_fd)
    : root_(std::move(root)), lock_fd_(lock_fd) {}

DataDirectory::~DataDirectory() { close(lock_fd_); }

std::string DataDirectory::DatabasePath() const { return absl::StrCat(root_, "/jobs.sqlite"); }

std::string DataDirectory::JobFolder(const std::string& job_id) const {
  return absl::StrCat(root_, "/jobs/", job_id);
}

std::string DataDirectory::LogFolder(const std::string& job_id) const {
  return absl::StrCat(JobFolder(job_id), "/logs");
}

absl::Status DataDirectory::AppendStep(const std::string& job_id, const StepRecord& record) {
  return Append(JobFolder(job_id), "steps.jsonl",
                absl::StrCat(ToJson(EncodeStepRecord(record)), "\n"));
}

absl::Status DataDirectory::AppendSampleIds(const std::string& job_id, int64_t step, int64_t epoch,
                                            const std::vector<int64_t>& sample_ids) {
  return Append(JobFolder(job_id), "samples.jsonl",
                absl::StrCat("{\"step\":", step, ",\"epoch\":", epoch, ",\"sample_ids\":[",
                             absl::StrJoin(sample_ids, ","), "]}\n"));
}

absl::Status DataDirectory::AppendLog(const std::string& job_id, int rank,
                                      const std::string& worker, absl::Time time,
                                      absl::string_view text) {
  std::string line(text.substr(0, kMaxLogLineBytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return Append(LogFolder(job_id), absl::StrCat(rank, ".log"),
                absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone()),
                             " ", worker, " ", line, "\n"));
}

absl::Status DataDirectory::Append(const std::string& folder, const std::string& name,
                                   absl::string_view line) {
  const std::string path = absl::StrCat(folder, "/", name);
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 && errno == ENOENT) {
    RETURN_IF_ERROR(RealFileSystem().CreateDirectories(folder));
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  if (fd < 0) return FileError(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  while (!line.empty()) {
    const ssize_t written = write(fd, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path, errno);
    line.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace esteira
