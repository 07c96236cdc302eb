#include "worker/checkpoint/directory.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr char kLockName[] = ".lock";
constexpr char kProbePrefix[] = ".probe-rank-";

absl::Status Probe(FileSystem& files, const std::string& directory, const std::string& path) {
  RETURN_IF_ERROR(files.CreateDirectories(directory));
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append("probe"));
  return file->Close();
}

}  // namespace

absl::Status ProbeDirectory(FileSystem& files, const std::string& directory, int rank) {
  const std::string path = absl::StrCat(directory, "/", kProbePrefix, rank);
  absl::Status status = Probe(files, directory, path);
  // The probe's own error is the one to report.
  status.Update(files.RemoveAll(path));
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("checkpoint.directory ", directory,
                                                  " cannot be written: ", status.message()));
}

absl::StatusOr<std::unique_ptr<FileLock>> LockDirectory(FileSystem& files,
                                                        const std::string& directory) {
  absl::StatusOr<std::unique_ptr<FileLock>> lock =
      files.Lock(absl::StrCat(directory, "/", kLockName));
  if (!absl::IsFailedPrecondition(lock.status())) return lock;
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.directory ", directory, " is in use by another job (",
                   lock.status().message(), "); name another one, or wait for that job's end"));
}

}  // namespace esteira
