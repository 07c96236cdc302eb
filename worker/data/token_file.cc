#include "worker/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

absl::Status OpenError(const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot read data file ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT: return absl::NotFoundError(message);
    case EACCES:
    case EPERM: return absl::PermissionDeniedError(message);
    default: return absl::InternalError(message);
  }
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not hang; it is refused below.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return OpenError(path, errno);
  struct stat info;
  if (fstat(descriptor, &info) != 0) {
    const int error = errno;
    close(descriptor);
    return OpenError(path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", path, " is ", S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
        ": name a file"));
  }
  return TokenFile(path, descriptor, static_cast<int64_t>(info.st_size));
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

TokenFile::~TokenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status TokenFile::ReadAt(int64_t offset, std::span<char> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(descriptor_, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OpenError(path_, errno);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("data file ", path_, " has shrunk: it had ",
                                              size_bytes_, " bytes when it was opened and ends at ",
                                              offset + static_cast<int64_t>(done), " now"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace esteira
