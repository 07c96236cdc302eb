#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace esteira {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// By its name, as --log_level takes it: debug, info, warning or error.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// Where log lines go; injected, so that a test can read them. Thread-safe.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(LogLevel level, absl::string_view line) = 0;
};

// One line an event: the event's name and fields, e.g. Logger(sink).With("job", id).Info("job
// started"). A value; copies share the sink. Error = someone must act; warning = degraded,
// recovered; info = state changes.
class Logger {
 public:
  explicit Logger(LogSink& sink) : sink_(&sink) {}

  template <typename Value>
  Logger With(absl::string_view name, const Value& value) const {
    Logger logger = *this;
    absl::StrAppend(&logger.fields_, " ", name, "=", value);
    return logger;
  }

  void Debug(absl::string_view event) const { Write(LogLevel::kDebug, event); }
  void Info(absl::string_view event) const { Write(LogLevel::kInfo, event); }
  void Warning(absl::string_view event) const { Write(LogLevel::kWarning, event); }
  void Error(absl::string_view event) const { Write(LogLevel::kError, event); }

 private:
  void Write(LogLevel level, absl::string_view event) const {
    sink_->Write(level, absl::StrCat(event, fields_));
  }

  LogSink* sink_;
  std::string fields_;
};

// A sink on standard error through spdlog: "2026-01-31T12:00:00.123Z INFO program event
// field=value".
std::unique_ptr<LogSink> MakeStderrLogSink(absl::string_view program, LogLevel lowest);

}  // namespace esteira
