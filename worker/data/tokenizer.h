#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

// Between text and tokens. Immutable, thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Tokens are in [0, vocab_size).
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int32_t> Encode(absl::string_view text) const = 0;
  // The bytes of one token; they need not be whole characters. Empty for a token outside the
  // vocabulary.
  virtual std::string Decode(int32_t token) const = 0;
};

// `name` as in a job file: "bytes" (a token is a byte's value). Unimplemented for any other.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name);

}  // namespace esteira
