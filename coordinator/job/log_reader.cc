#include "coordinator/job/log_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int64_t kChunkBytes = 128 << 10;

LogEntry ParseLine(int rank, absl::string_view line) {
  LogEntry entry;
  entry.rank = rank;
  const size_t time_end = line.find(' ');
  const size_t worker_end = time_end == line.npos ? line.npos : line.find(' ', time_end + 1);
  std::string error;
  if (worker_end == line.npos ||
      !absl::ParseTime(absl::RFC3339_full, line.substr(0, time_end), &entry.time, &error)) {
    // Torn by a full disk: shown as it is.
    entry.time = absl::UnixEpoch();
    entry.text = std::string(line);
    return entry;
  }
  entry.worker = std::string(line.substr(time_end + 1, worker_end - time_end - 1));
  entry.text = std::string(line.substr(worker_end + 1));
  return entry;
}

absl::StatusOr<std::string> ReadChunk(const std::string& path, int64_t offset, int64_t bytes) {
  std::string chunk(static_cast<size_t>(bytes), '\0');
  RETURN_IF_ERROR(
      RealFileSystem().ReadAt(path, offset, std::span<char>(chunk.data(), chunk.size())));
  return chunk;
}

// Where the last `lines` lines of a file begin.
absl::StatusOr<int64_t> TailOffset(const std::string& path, int64_t lines) {
  ASSIGN_OR_RETURN(const int64_t size, RealFileSystem().Size(path));
  int64_t begin = size;
  int64_t ends = 0;  // of lines, counted backwards; the end of the last line counts first
  while (begin > 0) {
    const int64_t bytes = std::min(begin, kChunkBytes);
    ASSIGN_OR_RETURN(const std::string chunk, ReadChunk(path, begin - bytes, bytes));
    for (int64_t i = bytes; i-- > 0;) {
      if (chunk[static_cast<size_t>(i)] == '\n' && ++ends > lines) return begin - bytes + i + 1;
    }
    begin -= bytes;
  }
  return 0;
}

}  // namespace

LogReader::LogReader(std::string folder, std::optional<int> rank, int64_t tail)
    : folder_(std::move(folder)), rank_(rank), tail_(tail) {}

absl::StatusOr<std::optional<LogEntry>> LogReader::Next() {
  if (tail_ > 0) RETURN_IF_ERROR(SkipToTail());
  ASSIGN_OR_RETURN(Cursor * first, FindFirst());
  if (first == nullptr) {
    // Ranks that have written nothing so far may have begun to.
    RETURN_IF_ERROR(FindFiles());
    ASSIGN_OR_RETURN(first, FindFirst());
  }
  if (first == nullptr) return std::optional<LogEntry>();
  return std::exchange(first->head, std::nullopt);
}

absl::StatusOr<LogReader::Cursor*> LogReader::FindFirst() {
  Cursor* first = nullptr;
  for (auto& [rank, cursor] : cursors_) {
    RETURN_IF_ERROR(Fill(rank, cursor));
    if (cursor.head && (first == nullptr || cursor.head->time < first->head->time)) first = &cursor;
  }
  return first;
}

absl::Status LogReader::FindFiles() {
  RealFileSystem files;
  if (!files.Exists(folder_)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder_));
  for (const std::string& name : names) {
    int rank = 0;
    if (!absl::SimpleAtoi(absl::StripSuffix(name, ".log"), &rank) || (rank_ && *rank_ != rank))
      continue;
    cursors_[rank].path = absl::StrCat(folder_, "/", name);
  }
  return absl::OkStatus();
}

// The last `tail_` lines over all ranks are among the last `tail_` of each.
absl::Status LogReader::SkipToTail() {
  const int64_t wanted = std::exchange(tail_, 0);
  RETURN_IF_ERROR(FindFiles());
  for (auto& [rank, cursor] : cursors_) {
    ASSIGN_OR_RETURN(cursor.offset, TailOffset(cursor.path, wanted));
  }
  const std::map<int, Cursor> begin = cursors_;
  int64_t lines = 0;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<LogEntry> entry, Next());
    if (!entry) break;
    ++lines;
  }
  cursors_ = begin;
  for (; lines > wanted; --lines) RETURN_IF_ERROR(Next().status());
  return absl::OkStatus();
}

absl::Status LogReader::Fill(int rank, Cursor& cursor) {
  while (!cursor.head) {
    const size_t end = cursor.buffer.find('\n', cursor.used);
    if (end != std::string::npos) {
      const absl::string_view buffer = cursor.buffer;
      cursor.head = ParseLine(rank, buffer.substr(cursor.used, end - cursor.used));
      cursor.used = end + 1;
      return absl::OkStatus();
    }
    cursor.buffer.erase(0, std::exchange(cursor.used, 0));
    ASSIGN_OR_RETURN(const int64_t size, RealFileSystem().Size(cursor.path));
    if (size <= cursor.offset) return absl::OkStatus();
    const int64_t bytes = std::min(size - cursor.offset, kChunkBytes);
    ASSIGN_OR_RETURN(const std::string chunk, ReadChunk(cursor.path, cursor.offset, bytes));
    cursor.buffer += chunk;
    cursor.offset += bytes;
  }
  return absl::OkStatus();
}

}  // namespace esteira
