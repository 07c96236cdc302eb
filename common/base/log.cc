#include "common/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace esteira {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

class SpdlogSink : public LogSink {
 public:
  SpdlogSink(absl::string_view program, LogLevel lowest)
      : logger_(std::string(program), std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(ToSpdlog(lowest));
    logger_.set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc));
    logger_.flush_on(spdlog::level::debug);
  }
  void Write(LogLevel level, absl::string_view line) override {
    logger_.log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  }

 private:
  spdlog::logger logger_;
};

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("--log_level=", name, ": expected debug, info, warning or error"));
}

std::unique_ptr<LogSink> MakeStderrLogSink(absl::string_view program, LogLevel lowest) {
  return std::make_unique<SpdlogSink>(program, lowest);
}

}  // namespace esteira
