#include "common/rpc/json.h"

#include <gmock/gmock.h>
#include <google/protobuf/wrappers.pb.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "common/rpc/timestamp.h"
#include "esteira/v1/cluster.pb.h"
#include "esteira/v1/worker.pb.h"

namespace esteira {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <typename Wrapper, typename Value>
std::string Wrapped(const Value& value) {
  Wrapper wrapper;
  wrapper.set_value(value);
  return ToJson(wrapper);
}

TEST(Timestamp, GoesThereAndBack) {
  for (const absl::Time time :
       {absl::UnixEpoch(), absl::FromUnixNanos(1), absl::FromUnixNanos(1'700'000'000'123'456'789),
        absl::FromUnixNanos(-1), absl::FromUnixNanos(-1'000'000'000),
        absl::FromUnixNanos(-1'500'000'000)}) {
    const google::protobuf::Timestamp message = EncodeTime(time);
    EXPECT_EQ(DecodeTime(message), time);
    EXPECT_GE(message.nanos(), 0) << "of times before 1970 too";
    EXPECT_LT(message.nanos(), 1'000'000'000);
  }
}

TEST(ToJson, EveryKindOfScalar) {
  using namespace google::protobuf;  // NOLINT: the wrappers
  EXPECT_EQ(Wrapped<Int32Value>(std::numeric_limits<int32_t>::min()), R"({"value": -2147483648})");
  EXPECT_EQ(Wrapped<UInt32Value>(~0u), R"({"value": 4294967295})");
  EXPECT_EQ(Wrapped<Int64Value>(std::numeric_limits<int64_t>::min()),
            R"({"value": -9223372036854775808})");
  EXPECT_EQ(Wrapped<UInt64Value>(~uint64_t{0}), R"({"value": 18446744073709551615})");
  EXPECT_EQ(Wrapped<BoolValue>(true), R"({"value": true})");
  EXPECT_EQ(Wrapped<BoolValue>(false), R"({"value": false})");
  EXPECT_EQ(Wrapped<DoubleValue>(0.1), R"({"value": 0.1})");
  EXPECT_EQ(Wrapped<FloatValue>(0.1f), R"({"value": 0.1})") << "not 0.10000000149011612";
  EXPECT_EQ(Wrapped<StringValue>("a"), R"({"value": "a"})");
  EXPECT_EQ(Wrapped<BytesValue>(std::string("\x00\xff", 2)), R"({"value": "AP8="})");
}

TEST(ToJson, WhatIsNotANumberIsText) {
  using google::protobuf::DoubleValue;
  using google::protobuf::FloatValue;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Wrapped<DoubleValue>(std::numeric_limits<double>::quiet_NaN()), R"({"value": "NaN"})");
  EXPECT_EQ(Wrapped<DoubleValue>(kInfinity), R"({"value": "Infinity"})");
  EXPECT_EQ(Wrapped<DoubleValue>(-kInfinity), R"({"value": "-Infinity"})");
  EXPECT_EQ(Wrapped<FloatValue>(-std::numeric_limits<float>::infinity()),
            R"({"value": "-Infinity"})");
}

TEST(ShortestDecimal, ReadsBackToTheSameBits) {
  for (const double value :
       {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e-5, 1e22, 5e-324, 1.7976931348623157e308, 123456789.125}) {
    const std::string text = ShortestDecimal(value);
    const double back = json::parse(text).get<double>();
    EXPECT_EQ(back, value) << text;
    EXPECT_EQ(std::signbit(back), std::signbit(value)) << text;
  }
  EXPECT_EQ(ShortestDecimal(0.1), "0.1");
  EXPECT_EQ(ShortestDecimal(5e-324), "5e-324");
  EXPECT_EQ(ShortestDecimal(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(ToJson, TextIsEscapedAndAlwaysValid) {
  for (const std::string& text : {std::string("a\"b\\c/\n\r\t\b"), std::string("\0\x01\x1f\x7f", 4),
                                  std::string("\xc3\xa9 \xf0\x9f\x98\x80"), std::string()}) {
    v1::LogLine line;
    line.set_text(text);
    const json parsed = json::parse(ToJson(line), nullptr, false);
    ASSERT_TRUE(parsed.is_object());
    EXPECT_EQ(parsed["text"], text);
    EXPECT_EQ(ToJson(line).find('\n'), std::string::npos) << "one line";
  }
}

TEST(ToJson, InvalidUtf8IsReplaced) {
  v1::CheckpointInfo info;
  info.set_path("a\xff\xc3z");
  const json parsed = json::parse(ToJson(info), nullptr, false);
  ASSERT_TRUE(parsed.is_object());
  EXPECT_EQ(parsed["path"], "a\xef\xbf\xbd\xef\xbf\xbdz");
}

TEST(ToJson, TimesAreRfc3339) {
  v1::LogLine line;
  EXPECT_EQ(ToJson(line), R"({"rank": 0, "worker": "", "text": ""})") << "no time, no field";
  line.mutable_time()->set_seconds(1'700'000'000);
  line.mutable_time()->set_nanos(250'000'000);
  EXPECT_EQ(json::parse(ToJson(line))["time"], "2023-11-14T22:13:20.25+00:00");
  line.mutable_time()->set_nanos(0);
  EXPECT_EQ(json::parse(ToJson(line))["time"], "2023-11-14T22:13:20+00:00");
}

TEST(ToJson, EveryScalarIsThereAndOptionalOnesOnlyWhenSet) {
  v1::StepRecord step;
  const json empty = json::parse(ToJson(step));
  EXPECT_EQ(empty["step"], 0);
  EXPECT_EQ(empty["loss"], 0);
  EXPECT_EQ(empty["skipped"], false);
  EXPECT_EQ(empty["parameter_hash"], "");
  EXPECT_FALSE(empty.contains("validation_loss"));
  EXPECT_EQ(empty["memory"], json::array());
  step.set_validation_loss(0);
  EXPECT_EQ(json::parse(ToJson(step))["validation_loss"], 0);
}

TEST(ToJson, MapsAreObjects) {
  v1::StepReportProto report;
  EXPECT_EQ(json::parse(ToJson(report))["bytes_moved"], json::object());
  (*report.mutable_bytes_moved())["GATHER"] = 5;
  (*report.mutable_bytes_moved())["a\"b"] = int64_t{1} << 40;
  (*report.mutable_bytes_moved())[""] = 0;
  EXPECT_EQ(json::parse(ToJson(report))["bytes_moved"],
            (json{{"GATHER", 5}, {"a\"b", int64_t{1} << 40}, {"", 0}}));
}

TEST(ToJson, OnlyTheChosenOneOfAOneofIsThere) {
  v1::TrainerReport report;
  report.mutable_exited()->set_signal(9);
  const json parsed = json::parse(ToJson(report));
  EXPECT_EQ(parsed["exited"]["signal"], 9);
  EXPECT_EQ(parsed["exited"]["out_of_memory"], false);
  EXPECT_FALSE(parsed.contains("ready"));
  EXPECT_FALSE(parsed.contains("failed"));
}

TEST(ToJson, EnumsAreTheirNamesAlsoUnknownOnes) {
  v1::Job job;
  job.set_state(v1::RUNNING);
  job.add_workers("a");
  job.add_workers("b");
  job.add_failures()->set_cause("x");
  EXPECT_EQ(json::parse(ToJson(job))["state"], "RUNNING");
  EXPECT_EQ(json::parse(ToJson(job))["workers"], (json{"a", "b"}));
  EXPECT_EQ(json::parse(ToJson(job))["failures"][0]["cause"], "x");
  job.set_state(static_cast<v1::JobState>(99));
  EXPECT_THAT(json::parse(ToJson(job))["state"].get<std::string>(), HasSubstr("99"));
}

TEST(ToPrettyJson, IsTheSameValueIndented) {
  v1::Worker worker;
  worker.set_id("w");
  EXPECT_THAT(ToPrettyJson(worker), testing::StartsWith("{\n  \"id\": \"w\",\n  \"incarnation\""));
  v1::ListWorkersResponse response;
  EXPECT_EQ(ToPrettyJson(response), "{\n  \"workers\": []\n}");
  EXPECT_EQ(ToPrettyJson(v1::ListWorkersRequest()), "{}");
  *response.add_workers() = worker;
  *response.add_workers() = worker;
  EXPECT_EQ(json::parse(ToPrettyJson(response)), json::parse(ToJson(response)));
  EXPECT_EQ(ToJson(response).find('\n'), std::string::npos);
}

TEST(FieldText, IsTheTextOfOneField) {
  v1::StepRecord step;
  step.set_skip_cause("a \"b\"");
  step.set_loss(1.5);
  EXPECT_EQ(FieldText(step, "skip_cause"), "a \"b\"") << "no quotes of JSON's";
  EXPECT_EQ(FieldText(step, "loss"), "1.5");
  EXPECT_EQ(FieldText(step, "skipped"), "false");
  EXPECT_EQ(FieldText(step, "validation_loss"), "");
  step.set_validation_loss(0);
  EXPECT_EQ(FieldText(step, "validation_loss"), "0");
}

}  // namespace
}  // namespace esteira
