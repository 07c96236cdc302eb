#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace esteira {

// The one of `known` that takes the fewest insertions, deletions and replacements of a character to
// write instead of `name`; the first of equals; empty when nothing is known.
std::string NearestName(absl::string_view name, const std::vector<std::string>& known);

}  // namespace esteira
