// Reading JSON that someone else wrote: every field is asked for by name and type, and a fault is a
// status that names it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace esteira {

// DataLoss names `what` when `text` is no JSON object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view what);

// Text with an indent and a newline at the end, as people like to read it.
std::string PrintJson(const nlohmann::json& value);

// DataLoss when the field is absent, null or of another type.
absl::StatusOr<int64_t> IntField(const nlohmann::json& object, const char* name);
absl::StatusOr<uint64_t> UnsignedField(const nlohmann::json& object, const char* name);
absl::StatusOr<double> NumberField(const nlohmann::json& object, const char* name);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* name);
absl::StatusOr<bool> BoolField(const nlohmann::json& object, const char* name);

// Whether the field is there and not null.
bool HasField(const nlohmann::json& object, const char* name);

}  // namespace esteira
