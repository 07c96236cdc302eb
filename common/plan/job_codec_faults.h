// Internal to the job codec: paths of fields.
#pragma once

#include "absl/strings/string_view.h"

namespace esteira {

// The field of faults of the text as a whole.
inline constexpr absl::string_view kWholeFile = "job file";

// Whether `field` is `path` or lies within it: "data.train[0].path" lies within "data.train" and
// "data".
bool IsWithin(absl::string_view field, absl::string_view path);

}  // namespace esteira
