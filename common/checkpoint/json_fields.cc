#include "common/checkpoint/json_fields.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

using nlohmann::json;

absl::Status FieldError(const char* name, const char* expected) {
  return absl::DataLossError(absl::StrCat("field \"", name, "\" is not ", expected));
}

// Null when absent.
const json& Find(const json& object, const char* name) {
  static const json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view what) {
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::DataLossError(absl::StrCat(what, " is not a JSON object"));
  return value;
}

std::string PrintJson(const json& value) {
  // `replace`: text that is not UTF-8 must not throw.
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<int64_t> IntField(const json& object, const char* name) {
  const json& field = Find(object, name);
  const bool fits = field.is_number_integer() &&
                    (!field.is_number_unsigned() ||
                     field.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) return FieldError(name, "a whole number");
  return field.get<int64_t>();
}

absl::StatusOr<uint64_t> UnsignedField(const json& object, const char* name) {
  const json& field = Find(object, name);
  if (!field.is_number_unsigned()) return FieldError(name, "a whole number from 0");
  return field.get<uint64_t>();
}

absl::StatusOr<double> NumberField(const json& object, const char* name) {
  const json& field = Find(object, name);
  if (!field.is_number()) return FieldError(name, "a number");
  return field.get<double>();
}

absl::StatusOr<std::string> StringField(const json& object, const char* name) {
  const json& field = Find(object, name);
  if (!field.is_string()) return FieldError(name, "a string");
  return field.get<std::string>();
}

absl::StatusOr<bool> BoolField(const json& object, const char* name) {
  const json& field = Find(object, name);
  if (!field.is_boolean()) return FieldError(name, "true or false");
  return field.get<bool>();
}

bool HasField(const json& object, const char* name) { return !Find(object, name).is_null(); }

}  // namespace esteira
