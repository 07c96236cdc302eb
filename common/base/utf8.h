#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace esteira {

// Length of the UTF-8 character that begins at `text[at]`; 0 when none does: a lead byte without as
// many continuation bytes as it announces, an overlong form, a surrogate, or a value above U+10FFFF
// (RFC 3629).
size_t Utf8LengthAt(absl::string_view text, size_t at);

bool IsUtf8(absl::string_view text);

// `text` with U+FFFD in place of each byte that belongs to no character.
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace esteira
