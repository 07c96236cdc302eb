#include "tests/fakes/fake_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

absl::Status Missing(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("cannot open ", path, ": no such file"));
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

bool IsUnder(const std::string& path, const std::string& directory) {
  return absl::StartsWith(path, absl::StrCat(directory, "/"));
}

}  // namespace

class FakeWritableFile : public WritableFile {
 public:
  FakeWritableFile(FakeFileSystem& files, std::shared_ptr<std::string> bytes)
      : files_(files), bytes_(std::move(bytes)) {}
  absl::Status Append(absl::string_view bytes) override {
    const std::lock_guard<std::mutex> lock(files_.mutex_);
    bytes_->append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  FakeFileSystem& files_;
  std::shared_ptr<std::string> bytes_;
};

class FakeFileLock : public FileLock {
 public:
  FakeFileLock(FakeFileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  ~FakeFileLock() override {
    const std::lock_guard<std::mutex> lock(files_.mutex_);
    files_.locked_.erase(path_);
  }

 private:
  FakeFileSystem& files_;
  const std::string path_;
};

absl::StatusOr<std::unique_ptr<WritableFile>> FakeFileSystem::Create(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!IsDirectory(ParentOf(path))) return Missing(ParentOf(path));
  auto bytes = std::make_shared<std::string>();
  files_[path] = bytes;
  return std::make_unique<FakeWritableFile>(*this, std::move(bytes));
}

absl::StatusOr<std::string> FakeFileSystem::Read(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto file = files_.find(path);
  if (file == files_.end()) return Missing(path);
  return *file->second;
}

absl::Status FakeFileSystem::ReadAt(const std::string& path, int64_t offset,
                                    std::span<char> bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto file = files_.find(path);
  if (file == files_.end()) return Missing(path);
  const auto begin = static_cast<size_t>(offset);
  if (begin + bytes.size() > file->second->size()) {
    return absl::OutOfRangeError(absl::StrCat(path, ": the file is shorter"));
  }
  std::copy_n(file->second->begin() + offset, bytes.size(), bytes.begin());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FakeFileSystem::Size(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto file = files_.find(path);
  if (file == files_.end()) return Missing(path);
  return static_cast<int64_t>(file->second->size());
}

absl::StatusOr<std::vector<std::string>> FakeFileSystem::List(const std::string& directory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!IsDirectory(directory)) return Missing(directory);
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (!IsUnder(path, directory)) return;
    const std::string rest = path.substr(directory.size() + 1);
    names.insert(rest.substr(0, rest.find('/')));
  };
  for (const auto& [path, bytes] : files_) add(path);
  for (const std::string& path : directories_) add(path);
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status FakeFileSystem::CreateDirectories(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::string directory = path; !directory.empty(); directory = ParentOf(directory)) {
    directories_.insert(directory);
  }
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto file = files_.find(from); file != files_.end()) {
    files_[to] = file->second;
    files_.erase(from);
    return absl::OkStatus();
  }
  if (!IsDirectory(from)) return Missing(from);
  if (IsDirectory(to)) return absl::UnavailableError(absl::StrCat(to, ": the directory is there"));
  const auto renamed = [&](const std::string& path) { return to + path.substr(from.size()); };
  std::map<std::string, std::shared_ptr<std::string>> files;
  for (const auto& [path, bytes] : files_)
    files[IsUnder(path, from) ? renamed(path) : path] = bytes;
  std::set<std::string> directories;
  for (const std::string& path : directories_) {
    directories.insert(path == from || IsUnder(path, from) ? renamed(path) : path);
  }
  files_ = std::move(files);
  directories_ = std::move(directories);
  return absl::OkStatus();
}

absl::Status FakeFileSystem::RemoveAll(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(files_,
                [&](const auto& file) { return file.first == path || IsUnder(file.first, path); });
  std::erase_if(directories_,
                [&](const std::string& name) { return name == path || IsUnder(name, path); });
  return absl::OkStatus();
}

bool FakeFileSystem::Exists(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_.count(path) > 0 || IsDirectory(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FakeFileSystem::Lock(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!IsDirectory(ParentOf(path))) return Missing(ParentOf(path));
  if (!locked_.insert(path).second) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is locked already"));
  }
  files_.emplace(path, std::make_shared<std::string>());
  return std::make_unique<FakeFileLock>(*this, path);
}

void FakeFileSystem::Overwrite(const std::string& path, std::string bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CHECK(files_.count(path) > 0);
  *files_[path] = std::move(bytes);
}

bool FakeFileSystem::IsDirectory(const std::string& path) const {
  return directories_.count(path) > 0;
}

}  // namespace esteira
