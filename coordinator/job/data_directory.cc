#include "coordinator/job/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/rpc/json.h"
#include "coordinator/job/job_messages.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {
namespace {

constexpr size_t kMaxLogLineBytes = 64 << 10;
constexpr int64_t kMaxStepLineBytes = 16 << 20;
constexpr char kStepsFile[] = "steps.jsonl";

absl::Status FileError(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot write ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  if (error == EACCES || error == EPERM || error == EROFS)
    return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

// 0 when there is no such file.
int64_t SizeOf(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 ? found.st_size : 0;
}

// Half a line would spoil the next one.
absl::Status TakeBack(int fd, off_t size, const absl::Status& error) {
  if (size >= 0 && ftruncate(fd, size) == 0) return error;
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), "; a part of the line is left behind"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(const std::string& root,
                                                                   int64_t max_log_bytes) {
  RETURN_IF_ERROR(RealFileSystem().CreateDirectories(absl::StrCat(root, "/jobs")));
  const std::string path = absl::StrCat(root, "/lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("another coordinator uses ", root, ": stop it, or choose another --data_dir"));
  }
  return std::unique_ptr<DataDirectory>(new DataDirectory(root, fd, max_log_bytes));
}

DataDirectory::DataDirectory(std::string root, int lock_fd, int64_t max_log_bytes)
    : root_(std::move(root)), lock_fd_(lock_fd), max_log_bytes_(max_log_bytes) {}

DataDirectory::~DataDirectory() { close(lock_fd_); }

std::string DataDirectory::DatabasePath() const { return absl::StrCat(root_, "/jobs.sqlite"); }

std::string DataDirectory::JobFolder(const std::string& job_id) const {
  return absl::StrCat(root_, "/jobs/", job_id);
}

std::string DataDirectory::LogFolder(const std::string& job_id) const {
  return absl::StrCat(JobFolder(job_id), "/logs");
}

absl::Status DataDirectory::AppendStep(const std::string& job_id, const StepRecord& record) {
  return Append(JobFolder(job_id), kStepsFile,
                absl::StrCat(ToJson(EncodeStepRecord(record)), "\n"));
}

absl::StatusOr<int64_t> DataDirectory::LastStep(const std::string& job_id) {
  const std::string path = absl::StrCat(JobFolder(job_id), "/", kStepsFile);
  RealFileSystem files;
  if (!files.Exists(path)) return 0;
  ASSIGN_OR_RETURN(const int64_t size, files.Size(path));
  std::string end(static_cast<size_t>(std::min(size, kMaxStepLineBytes)), '\0');
  RETURN_IF_ERROR(files.ReadAt(path, size - static_cast<int64_t>(end.size()),
                               std::span<char>(end.data(), end.size())));
  const size_t line_end = end.rfind('\n');
  const size_t whole = line_end == std::string::npos ? 0 : line_end + 1;
  if (whole == 0 && size > kMaxStepLineBytes) {
    return absl::DataLossError(absl::StrCat(path, " does not end with a record of a step"));
  }
  if (whole < end.size() &&
      truncate(path.c_str(), size - static_cast<int64_t>(end.size() - whole)) != 0) {
    return FileError(path, errno);
  }
  if (whole == 0) return 0;
  end.resize(line_end);
  absl::string_view line = end;
  line.remove_prefix(end.rfind('\n') + 1);  // npos + 1 is 0
  int64_t step = 0;
  if (!absl::ConsumePrefix(&line, "{\"step\": ") ||
      !absl::SimpleAtoi(line.substr(0, line.find_first_not_of("0123456789")), &step)) {
    return absl::DataLossError(absl::StrCat("the last line of ", path, " is no record of a step"));
  }
  return step;
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
  const std::string head = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone()), " ", worker, " ");
  const std::string last = absl::StrCat(head, "no more lines of this rank are kept: its log has ",
                                        max_log_bytes_, " bytes\n");
  line = absl::StrCat(head, line, "\n");
  const std::string name = absl::StrCat(rank, ".log");
  const int64_t before = SizeOf(absl::StrCat(LogFolder(job_id), "/", name));
  if (before >= max_log_bytes_) return absl::OkStatus();
  const bool is_last = before + static_cast<int64_t>(line.size()) >= max_log_bytes_;
  return Append(LogFolder(job_id), name, is_last ? absl::StrCat(line, last) : line);
}

absl::Status DataDirectory::Append(const std::string& folder, const std::string& name,
                                   absl::string_view lines) {
  const std::string path = absl::StrCat(folder, "/", name);
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 && errno == ENOENT) {
    RETURN_IF_ERROR(RealFileSystem().CreateDirectories(folder));
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  if (fd < 0) return FileError(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  const off_t before = lseek(fd, 0, SEEK_END);
  while (!lines.empty()) {
    const ssize_t written = write(fd, lines.data(), lines.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return TakeBack(fd, before, FileError(path, errno));
    lines.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace esteira
