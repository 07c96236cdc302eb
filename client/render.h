// How values look to people.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {

// Columns as wide as their widest cell, two spaces between, no trailing spaces.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out);

std::string FormatBytes(int64_t bytes);  // "12.3 MiB"
std::string FormatSeconds(
    double seconds);  // "120 us", "3.4 ms", "850 ms", "12.3 s", "4m 05s", "2h 03m"
std::string FormatAge(const google::protobuf::Timestamp& time, absl::Time now);
absl::Time ToTime(const google::protobuf::Timestamp& time);
std::string StateName(v1::JobState state);

// The progress line of a job: bar, step, loss, tokens/s, time left. At most `width` columns.
std::string ProgressLine(const v1::StepRecord& step, int64_t steps, int width);

// A step as one CSV row, in the order of CsvHeader.
std::string CsvHeader();
std::string CsvRow(const v1::StepRecord& step);

}  // namespace esteira
