#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

// A file that is written once, from its start to its end. Close makes its bytes durable (fsync); a
// file dropped without Close may be partial. Not thread-safe.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  virtual absl::Status Close() = 0;
};

// A lock that is held while this lives. It dies with the process, however that ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// Every effect on files goes through here, so that a test can fill the disk, tear a write or drop
// unsynced bytes. Thread-safe. Errors name the path: NotFound, PermissionDenied, ResourceExhausted
// (disk full), Internal (other).
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::string> Read(const std::string& path) = 0;
  // `length` bytes from `offset`; OutOfRange when the file is shorter.
  virtual absl::Status ReadAt(const std::string& path, int64_t offset, std::span<char> bytes) = 0;
  virtual absl::StatusOr<int64_t> Size(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) = 0;  // names, sorted
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;  // atomic, and durable
  virtual absl::Status RemoveAll(
      const std::string& path) = 0;  // a path that is not there is no error
  virtual bool Exists(const std::string& path) = 0;
  // An exclusive, advisory lock on `path`, which is created and stays. FailedPrecondition when it
  // is held already, by whomever; does not wait.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
};

// The operating system's files.
class RealFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::string> Read(const std::string& path) override;
  absl::Status ReadAt(const std::string& path, int64_t offset, std::span<char> bytes) override;
  absl::StatusOr<int64_t> Size(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveAll(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
};

// Writes `bytes` to `path` by way of a temporary file beside it and an atomic rename: readers see
// all or nothing.
absl::Status WriteFileAtomically(FileSystem& files, const std::string& path,
                                 absl::string_view bytes);

}  // namespace esteira
