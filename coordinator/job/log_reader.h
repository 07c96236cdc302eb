#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace esteira {

struct LogEntry {
  absl::Time time;
  int rank = 0;
  std::string worker;
  std::string text;
};

// Reads a job's log files (DataDirectory::LogFolder) as one stream in order of time; lines of one
// rank keep their order. Holds at most one chunk of each file in memory. A line that is still being
// written is left for later. Not thread-safe; several readers may read while the files grow.
class LogReader {
 public:
  // `rank`: only this one. `tail`: begin so many lines before the present end; 0: at the beginning.
  LogReader(std::string folder, std::optional<int> rank, int64_t tail);

  // The next line, or none when all that is there has been read; more may come later.
  absl::StatusOr<std::optional<LogEntry>> Next();

 private:
  struct Cursor {
    std::string path;
    int64_t offset = 0;  // of the first byte that is not in `buffer`
    std::string buffer;
    size_t used = 0;  // bytes of `buffer` that are given out
    std::optional<LogEntry> head;
  };

  absl::Status FindFiles();
  absl::StatusOr<Cursor*> FindFirst();
  absl::Status SkipToTail();
  absl::Status Fill(int rank, Cursor& cursor);

  const std::string folder_;
  const std::optional<int> rank_;
  int64_t tail_;
  std::map<int, Cursor> cursors_;  // by rank
};

}  // namespace esteira
