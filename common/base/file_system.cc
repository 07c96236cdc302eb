#include "common/base/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT: return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS: return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT: return absl::ResourceExhaustedError(message);
    default: return absl::InternalError(message);
  }
}

absl::Status SyncDirectoryOf(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  if (parent.empty()) parent = ".";
  const int fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open directory", parent, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  return result == 0 ? absl::OkStatus() : FileError("cannot sync directory", parent, error);
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Append(absl::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError("cannot write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Close() override {
    const int fd = fd_;
    fd_ = -1;
    const bool synced = fsync(fd) == 0;
    const int error = errno;
    const bool closed = close(fd) == 0;
    if (!synced) return FileError("cannot sync", path_, error);
    return closed ? absl::OkStatus() : FileError("cannot close", path_, errno);
  }

 private:
  int fd_;
  std::string path_;
};

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(int fd) : fd_(fd) {}
  ~PosixFileLock() override { close(fd_); }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> RealFileSystem::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("cannot create", path, errno);
  return std::make_unique<PosixWritableFile>(fd, path);
}

absl::StatusOr<std::string> RealFileSystem::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t size, Size(path));
  std::string bytes(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(ReadAt(path, 0, std::span<char>(bytes.data(), bytes.size())));
  return bytes;
}

absl::Status RealFileSystem::ReadAt(const std::string& path, int64_t offset,
                                    std::span<char> bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(fd, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("cannot read", path, errno);
    if (got == 0) {
      return absl::OutOfRangeError(absl::StrCat("cannot read ", bytes.size(), " bytes at ", offset,
                                                " of ", path, ": the file is shorter"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RealFileSystem::Size(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return FileError("cannot read", path, errno);
  if (S_ISDIR(info.st_mode)) return FileError("cannot read", path, EISDIR);
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<std::vector<std::string>> RealFileSystem::List(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return FileError("cannot list", directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RealFileSystem::CreateDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? FileError("cannot create directory", path, error.value()) : absl::OkStatus();
}

absl::Status RealFileSystem::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return FileError("cannot rename to", to, errno);
  return SyncDirectoryOf(to);
}

absl::Status RealFileSystem::RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? FileError("cannot remove", path, error.value()) : absl::OkStatus();
}

bool RealFileSystem::Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<std::unique_ptr<FileLock>> RealFileSystem::Lock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("cannot open", path, errno);
  auto lock = std::make_unique<PosixFileLock>(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return FileError("cannot lock", path, errno);
  return absl::FailedPreconditionError(absl::StrCat(path, " is locked already"));
}

absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::string_view bytes) {
  const std::string temporary = path + ".tmp";
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(temporary));
    RETURN_IF_ERROR(file->Append(bytes));
    RETURN_IF_ERROR(file->Close());
    return files.Rename(temporary, path);
  }();
  // The write's own error is the one to report.
  if (!status.ok()) files.RemoveAll(temporary).IgnoreError();
  return status;
}

}  // namespace esteira
