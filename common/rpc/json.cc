#include "common/rpc/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/rpc/timestamp.h"

namespace esteira {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// nlohmann's dump escapes and replaces what is not UTF-8: the output is always valid JSON.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime(absl::RFC3339_full, DecodeTime(time), absl::UTCTimeZone());
}

// The shortest decimal of a value of this type: a float needs fewer digits than a double.
template <typename Float>
std::string DecimalText(Float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  if (value == 0 && std::signbit(value)) return "-0.0";  // readers take "-0" for an integer
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::string MessageText(const Message& message, int indent);

// A number or a word, unquoted; the caller knows whether it is text.
std::string ScalarText(const Message& message, const Reflection& reflection,
                       const FieldDescriptor& field, int index) {
  const auto get = [&](auto single, auto repeated) {
    return index < 0 ? (reflection.*single)(message, &field)
                     : (reflection.*repeated)(message, &field, index);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DecimalText(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return DecimalText(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = get(&Reflection::GetString, &Reflection::GetRepeatedString);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE: break;
  }
  CHECK(false && "not a scalar");
  return "";
}

bool IsText(const FieldDescriptor& field, const std::string& text) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM || text == "NaN" || text == "Infinity" ||
         text == "-Infinity";
}

std::string ValueText(const Message& message, const FieldDescriptor& field, int index, int indent) {
  const Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const Message& child = index < 0 ? reflection.GetMessage(message, &field)
                                     : reflection.GetRepeatedMessage(message, &field, index);
    if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&child))
      return Quoted(TimeText(*time));
    return MessageText(child, indent);
  }
  const std::string text = ScalarText(message, reflection, field, index);
  return IsText(field, text) ? Quoted(text) : text;
}

// The entries of a map by key: their own order differs from run to run.
std::string ListText(const Message& message, const FieldDescriptor& field, int indent) {
  const int size = message.GetReflection()->FieldSize(message, &field);
  std::vector<std::string> items;
  for (int i = 0; i < size; ++i) {
    if (field.is_map()) {
      const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
      const auto& type = *field.message_type();
      items.push_back(Quoted(FieldText(entry, "key")) + ": " +
                      ValueText(entry, *type.map_value(), -1, indent));
    } else {
      items.push_back(ValueText(message, field, i, indent));
    }
  }
  if (field.is_map()) std::sort(items.begin(), items.end());
  return absl::StrCat(field.is_map() ? "{" : "[", absl::StrJoin(items, ", "),
                      field.is_map() ? "}" : "]");
}

bool IsPresent(const Message& message, const FieldDescriptor& field) {
  if (field.is_repeated() || !field.has_presence()) return true;
  return message.GetReflection()->HasField(message, &field);
}

// `indent` < 0: one line.
std::string MessageText(const Message& message, int indent) {
  const auto& type = *message.GetDescriptor();
  const int inner = indent < 0 ? indent : indent + 2;
  const std::string line_break =
      indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(inner), ' ');
  std::string text = "{";
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!IsPresent(message, field)) continue;
    absl::StrAppend(&text, text.size() > 1 ? (indent < 0 ? ", " : ",") : "", line_break, "\"",
                    field.name(), "\": ",
                    field.is_repeated() ? ListText(message, field, inner)
                                        : ValueText(message, field, -1, inner));
  }
  if (indent >= 0 && text.size() > 1)
    absl::StrAppend(&text, "\n", std::string(static_cast<size_t>(indent), ' '));
  return text + "}";
}

}  // namespace

std::string ToJson(const Message& message) { return MessageText(message, -1); }
std::string ToPrettyJson(const Message& message) { return MessageText(message, 0); }

std::string FieldText(const Message& message, absl::string_view field) {
  const FieldDescriptor* descriptor = message.GetDescriptor()->FindFieldByName(std::string(field));
  CHECK(descriptor != nullptr);
  if (!IsPresent(message, *descriptor)) return "";
  return ScalarText(message, *message.GetReflection(), *descriptor, -1);
}

std::string ShortestDecimal(double value) { return DecimalText(value); }

}  // namespace esteira
