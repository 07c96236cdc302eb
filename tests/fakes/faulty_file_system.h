#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/file_system.h"

namespace esteira {

// A file system that fails when a test says so. Every call that changes something (Create, Append,
// Close, CreateDirectories, Rename, RemoveAll, Lock) counts as one operation, from 0. Thread-safe.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& files) : files_(files) {}

  // Operation `index` fails (an Append after writing half of its bytes).
  void FailOnce(int index, absl::Status status);
  // So do all that come after it: the process has died, and cannot clean up either.
  void FailFrom(int index, absl::Status status);
  // Appends fail once `bytes` were written in all: the disk is full. Other operations work.
  void FailAfterBytes(int64_t bytes);
  int operations() const;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::string> Read(const std::string& path) override { return files_.Read(path); }
  absl::Status ReadAt(const std::string& path, int64_t offset, std::span<char> bytes) override {
    return files_.ReadAt(path, offset, bytes);
  }
  absl::StatusOr<int64_t> Size(const std::string& path) override { return files_.Size(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return files_.List(directory);
  }
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveAll(const std::string& path) override;
  bool Exists(const std::string& path) override { return files_.Exists(path); }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

 private:
  friend class FaultyWritableFile;
  absl::Status Next();        // counts an operation
  size_t Room(size_t bytes);  // how many of them still fit on the disk

  FileSystem& files_;
  mutable std::mutex mutex_;
  int operations_ = 0;  // this and all below protected by mutex_
  int first_failure_ = -1;
  bool only_once_ = true;
  absl::Status failure_;
  int64_t room_bytes_ = -1;  // -1: no limit
};

}  // namespace esteira
