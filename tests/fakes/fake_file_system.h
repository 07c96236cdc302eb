#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/base/file_system.h"

namespace esteira {

// Files and directories in memory. Thread-safe. A file's bytes are there as soon as they are
// appended, so a file dropped without Close is partial, as on a disk.
class FakeFileSystem : public FileSystem {
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

  // Replaces a file's bytes, to damage it.
  void Overwrite(const std::string& path, std::string bytes);

 private:
  friend class FakeWritableFile;
  friend class FakeFileLock;
  bool IsDirectory(const std::string& path) const;  // with mutex_ held

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<std::string>>
      files_;                          // protected by mutex_, as are the bytes
  std::set<std::string> directories_;  // protected by mutex_
  std::set<std::string> locked_;       // protected by mutex_
};

}  // namespace esteira
