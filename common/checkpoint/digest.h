#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace esteira {

// SHA-256 of bytes that arrive in pieces. Not thread-safe.
class Digest {
 public:
  Digest();
  ~Digest();
  void Append(absl::string_view bytes);
  // Lower-case hex of everything appended; afterwards the digest is used up.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esteira
