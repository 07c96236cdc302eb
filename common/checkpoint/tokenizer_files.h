// Hugging Face's tokenizer files of the `bytes` tokenizer: byte-level BPE without merges, so that a
// token's id is the byte's value.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace esteira {

inline constexpr char kTokenizerName[] = "tokenizer.json";
inline constexpr char kTokenizerConfigName[] = "tokenizer_config.json";

// The bytes below `vocab_size` have a token.
std::string PrintByteTokenizer(int64_t vocab_size);
std::string PrintTokenizerConfig(int64_t max_sequence_length);

// The name of the tokenizer (as in a job file) that tokenizer.json describes: "bytes".
// Unimplemented for any other.
absl::StatusOr<std::string> ParseTokenizerName(absl::string_view tokenizer_json);

}  // namespace esteira
