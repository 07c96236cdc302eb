// The JSON of our messages, for -o json, steps.jsonl and scripts: field names as in the .proto
// files (which are the contract's and the job file's), 64-bit integers as numbers, floats as the
// shortest decimals that read back to the same bits, times as RFC 3339, every scalar present even
// when it is zero, so that columns never vanish.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace esteira {

// One line, without a line break.
std::string ToJson(const google::protobuf::Message& message);
// Indented by two spaces.
std::string ToPrettyJson(const google::protobuf::Message& message);

// The text of one scalar field, as in ToJson but without quotes; empty for an optional field that
// is not set.
std::string FieldText(const google::protobuf::Message& message, absl::string_view field);

// The shortest decimal that reads back to `value`; NaN and infinities as "NaN", "Infinity",
// "-Infinity".
std::string ShortestDecimal(double value);

}  // namespace esteira
