#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace esteira {

// An open file of fixed-width unsigned tokens. Reads with pread, so a file that shrinks gives an
// error and never a signal. Owns the descriptor. Immutable, thread-safe. Knows no samples.
class TokenFile {
 public:
  // A regular file; `size` is in bytes.
  static absl::StatusOr<TokenFile> Open(const std::string& path);
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;
  ~TokenFile();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Exactly bytes.size() bytes from `offset`, or DataLoss.
  absl::Status ReadAt(int64_t offset, std::span<char> bytes) const;

 private:
  TokenFile(std::string path, int descriptor, int64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

  std::string path_;
  int descriptor_;
  int64_t size_bytes_;
};

}  // namespace esteira
