#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace esteira {

// Turns bytes that arrive one by one into text that a terminal can show: whole UTF-8 characters
// only; bytes that are none, and control characters other than newline and tab, become U+FFFD. A
// character cut in two waits for its rest.
class Utf8Stream {
 public:
  // The text that is complete now.
  std::string Push(absl::string_view bytes);
  // What still waited: a replacement character, or nothing.
  std::string Finish();

 private:
  std::string waiting_;
};

}  // namespace esteira
