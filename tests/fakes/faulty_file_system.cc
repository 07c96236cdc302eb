#include "tests/fakes/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {

class FaultyWritableFile : public WritableFile {
 public:
  FaultyWritableFile(FaultyFileSystem& files, std::unique_ptr<WritableFile> file)
      : files_(files), file_(std::move(file)) {}

  absl::Status Append(absl::string_view bytes) override {
    const absl::Status status = files_.Next();
    if (!status.ok()) {
      RETURN_IF_ERROR(file_->Append(bytes.substr(0, bytes.size() / 2)));
      return status;
    }
    const size_t room = files_.Room(bytes.size());
    RETURN_IF_ERROR(file_->Append(bytes.substr(0, room)));
    if (room == bytes.size()) return absl::OkStatus();
    return absl::ResourceExhaustedError("cannot write: no space left on device");
  }
  absl::Status Close() override {
    RETURN_IF_ERROR(files_.Next());
    return file_->Close();
  }

 private:
  FaultyFileSystem& files_;
  std::unique_ptr<WritableFile> file_;
};

void FaultyFileSystem::FailOnce(int index, absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_failure_ = index;
  only_once_ = true;
  failure_ = std::move(status);
}

void FaultyFileSystem::FailFrom(int index, absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_failure_ = index;
  only_once_ = false;
  failure_ = std::move(status);
}

void FaultyFileSystem::FailAfterBytes(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  room_bytes_ = bytes;
}

int FaultyFileSystem::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return operations_;
}

absl::Status FaultyFileSystem::Next() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int index = operations_++;
  const bool fails =
      first_failure_ >= 0 && (only_once_ ? index == first_failure_ : index >= first_failure_);
  return fails ? failure_ : absl::OkStatus();
}

size_t FaultyFileSystem::Room(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (room_bytes_ < 0) return bytes;
  const size_t room = std::min(bytes, static_cast<size_t>(room_bytes_));
  room_bytes_ -= static_cast<int64_t>(room);
  return room;
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFileSystem::Create(const std::string& path) {
  RETURN_IF_ERROR(Next());
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(path));
  return std::make_unique<FaultyWritableFile>(*this, std::move(file));
}

absl::Status FaultyFileSystem::CreateDirectories(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return files_.CreateDirectories(path);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Next());
  return files_.Rename(from, to);
}

absl::Status FaultyFileSystem::RemoveAll(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return files_.RemoveAll(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultyFileSystem::Lock(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return files_.Lock(path);
}

}  // namespace esteira
