#include "client/render.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/rpc/json.h"
#include "common/rpc/timestamp.h"

namespace esteira {

void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (widths.size() < row.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {  // no "1024.0 KiB"
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds > 0 && seconds < 0.0009995) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds > 0 && seconds < 0.00995) return absl::StrFormat("%.1f ms", seconds * 1000);
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1000);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh %02dm", whole / 3600, whole % 3600 / 60);
}

absl::Time ToTime(const google::protobuf::Timestamp& time) { return DecodeTime(time); }

std::string FormatAge(const google::protobuf::Timestamp& time, absl::Time now) {
  if (time.seconds() == 0) return "-";
  return FormatSeconds(std::max(0.0, absl::ToDoubleSeconds(now - ToTime(time))));
}

std::string StateName(v1::JobState state) { return v1::JobState_Name(state); }

std::string ProgressLine(const v1::StepRecord& step, int64_t steps, int width) {
  const double share =
      steps > 0 ? static_cast<double>(step.step()) / static_cast<double>(steps) : 0;
  const double left =
      static_cast<double>(std::max<int64_t>(steps - step.step(), 0)) * step.step_seconds();
  const std::string text =
      absl::StrFormat(" %d/%d  loss %.4f  %.0f tokens/s  %s left", step.step(), steps, step.loss(),
                      step.tokens_per_second(), FormatSeconds(left));
  const int room = std::clamp(width - static_cast<int>(text.size()) - 3, 0, 40);
  std::string bar;
  if (room >= 5) {
    const auto filled = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * room);
    bar = absl::StrCat("[", std::string(filled, '#'),
                       std::string(static_cast<size_t>(room) - filled, '.'), "]");
  }
  return (bar + text).substr(0, static_cast<size_t>(std::max(width, 0)));
}

namespace {

// The contract's fields, in its order.
constexpr std::array<const char*, 16> kStepFields = {"step",
                                                     "loss",
                                                     "gradient_norm",
                                                     "learning_rate",
                                                     "tokens",
                                                     "valid_tokens",
                                                     "skipped",
                                                     "step_seconds",
                                                     "tokens_per_second",
                                                     "model_flops_utilization",
                                                     "bubble_ratio",
                                                     "exposed_communication_ratio",
                                                     "parameter_hash",
                                                     "epoch",
                                                     "loss_bits",
                                                     "gradient_norm_bits"};

}  // namespace

std::string CsvHeader() {
  std::string header;
  for (const char* field : kStepFields) absl::StrAppend(&header, header.empty() ? "" : ",", field);
  return header;
}

std::string CsvRow(const v1::StepRecord& step) {
  std::string row;
  bool first = true;
  for (const char* field : kStepFields) {
    absl::StrAppend(&row, first ? "" : ",", FieldText(step, field));
    first = false;
  }
  return row;
}

}  // namespace esteira
