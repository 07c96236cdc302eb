#include "client/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "absl/strings/str_split.h"
#include "common/base/exit_code.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::ostringstream out;
  PrintTable(rows, out);
  return out.str();
}

TEST(PrintTable, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(Table({{"ID", "STATE"}, {"longer", "X"}, {"a", "QUEUED"}}),
            "ID      STATE\n"
            "longer  X\n"
            "a       QUEUED\n");
}

TEST(PrintTable, OddShapes) {
  EXPECT_EQ(Table({}), "");
  EXPECT_EQ(Table({{}}), "\n");
  EXPECT_EQ(Table({{"", ""}}), "\n");
  EXPECT_EQ(Table({{"a"}, {"b", "c"}}), "a\nb  c\n");
  EXPECT_EQ(Table({{"wide", ""}, {"x", ""}}), "wide\nx\n") << "no trailing spaces";
}

TEST(FormatBytes, Units) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB") << "not 1024.0 KiB";
  EXPECT_EQ(FormatBytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(FormatBytes(int64_t{1} << 60), "1048576.0 TiB");
}

TEST(FormatSeconds, Units) {
  EXPECT_EQ(FormatSeconds(0), "0 ms");
  EXPECT_EQ(FormatSeconds(1.2e-4), "120 us");
  EXPECT_EQ(FormatSeconds(0.0009996), "1.0 ms") << "not 1000 us";
  EXPECT_EQ(FormatSeconds(0.00341), "3.4 ms");
  EXPECT_EQ(FormatSeconds(0.00996), "10 ms") << "not 10.0 ms";
  EXPECT_EQ(FormatSeconds(0.85), "850 ms");
  EXPECT_EQ(FormatSeconds(0.9996), "1.0 s") << "not 1000 ms";
  EXPECT_EQ(FormatSeconds(12.34), "12.3 s");
  EXPECT_EQ(FormatSeconds(59.96), "1m 00s") << "not 60.0 s";
  EXPECT_EQ(FormatSeconds(245), "4m 05s");
  EXPECT_EQ(FormatSeconds(3599.6), "1h 00m");
  EXPECT_EQ(FormatSeconds(7384), "2h 03m");
  EXPECT_EQ(FormatSeconds(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(FormatSeconds(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(FormatAge, FromTheTimeToNow) {
  google::protobuf::Timestamp time;
  EXPECT_EQ(FormatAge(time, absl::FromUnixSeconds(100)), "-");
  time.set_seconds(40);
  time.set_nanos(500'000'000);
  EXPECT_EQ(FormatAge(time, absl::FromUnixSeconds(100)), "59.5 s");
  EXPECT_EQ(FormatAge(time, absl::FromUnixSeconds(10)), "0 ms") << "clocks differ";
}

v1::StepRecord Step() {
  v1::StepRecord step;
  step.set_step(30);
  step.set_loss(2.5);
  step.set_tokens_per_second(1234.4);
  step.set_step_seconds(0.5);
  return step;
}

TEST(ProgressLine, BarAndNumbers) {
  EXPECT_EQ(ProgressLine(Step(), 60, 120),
            "[####################....................] 30/60  loss 2.5000  1234 tokens/s  15.0 s "
            "left");
}

TEST(ProgressLine, NeverWiderThanAsked) {
  for (int width = -1; width <= 130; ++width) {
    const std::string line = ProgressLine(Step(), 60, width);
    EXPECT_LE(line.size(), static_cast<size_t>(std::max(width, 0))) << width;
    const size_t open = line.find('[');
    EXPECT_EQ(open != std::string::npos, line.find(']') != std::string::npos)
        << "a bar is whole or not there: " << line;
  }
  EXPECT_EQ(ProgressLine(Step(), 60, 0), "");
}

TEST(ProgressLine, OddCounts) {
  EXPECT_THAT(ProgressLine(Step(), 0, 120), HasSubstr("[....")) << "no steps: an empty bar";
  EXPECT_THAT(ProgressLine(Step(), 0, 120), HasSubstr("30/0"));
  EXPECT_THAT(ProgressLine(Step(), 0, 120), HasSubstr(" 0 ms left"));
  EXPECT_THAT(ProgressLine(Step(), 20, 120), HasSubstr("###]")) << "beyond the end: a full bar";
  EXPECT_THAT(ProgressLine(v1::StepRecord(), 0, 120), HasSubstr(" 0/0 "));
}

TEST(Csv, TheRowHasTheHeadersFields) {
  EXPECT_EQ(CsvHeader(),
            "step,loss,gradient_norm,learning_rate,tokens,valid_tokens,skipped,step_seconds,"
            "tokens_per_second,model_flops_utilization,bubble_ratio,exposed_communication_ratio,"
            "parameter_hash,epoch,loss_bits,gradient_norm_bits");
  v1::StepRecord step;
  step.set_step(7);
  step.set_loss(0.1);
  step.set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  step.set_learning_rate(1e-5);
  step.set_tokens(int64_t{1} << 53);
  step.set_valid_tokens(3);
  step.set_skipped(true);
  step.set_step_seconds(0.25);
  step.set_tokens_per_second(1e300);
  step.set_parameter_hash("00ff");
  step.set_epoch(2);
  step.set_loss_bits("aa");
  step.set_gradient_norm_bits("bb");
  EXPECT_EQ(CsvRow(step), "7,0.1,NaN,1e-05,9007199254740992,3,true,0.25,1e+300,0,0,0,00ff,2,aa,bb");
}

TEST(Csv, AnEmptyRecordHasEveryColumn) {
  EXPECT_EQ(CsvRow(v1::StepRecord()), "0,0,0,0,0,0,false,0,0,0,0,0,,0,,");
}

TEST(ExitCode, OfEveryStatus) {
  using absl::StatusCode;
  const auto code = [](StatusCode status) { return ExitCodeOf(absl::Status(status, "")); };
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(code(StatusCode::kInvalidArgument), 2);
  EXPECT_EQ(code(StatusCode::kUnavailable), 3);
  EXPECT_EQ(code(StatusCode::kPermissionDenied), 4);
  EXPECT_EQ(code(StatusCode::kUnauthenticated), 4);
  EXPECT_EQ(code(StatusCode::kNotFound), 5);
  EXPECT_EQ(code(StatusCode::kDeadlineExceeded), 124);
  for (const StatusCode refused : {StatusCode::kAlreadyExists, StatusCode::kResourceExhausted,
                                   StatusCode::kFailedPrecondition, StatusCode::kUnimplemented}) {
    EXPECT_EQ(code(refused), 2) << absl::StatusCodeToString(refused);
  }
  for (const StatusCode other :
       {StatusCode::kCancelled, StatusCode::kUnknown, StatusCode::kAborted, StatusCode::kOutOfRange,
        StatusCode::kInternal, StatusCode::kDataLoss}) {
    EXPECT_EQ(code(other), 1) << absl::StatusCodeToString(other);
  }
}

TEST(ExitCode, AnErrorIsTwoLinesOnStandardError) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  EXPECT_EQ(ReportError(absl::UnavailableError("no coordinator is known")), kExitNotConnected);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_THAT(text, testing::StartsWith("esteira: no coordinator is known\n"));
  EXPECT_THAT(text, HasSubstr("esteira local up"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

}  // namespace
}  // namespace esteira
