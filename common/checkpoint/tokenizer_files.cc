#include "common/checkpoint/tokenizer_files.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr int kNumBytes = 256;

bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
         (byte >= 0xae && byte <= 0xff);
}

// A code point below 0x800.
std::string Utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The vocabulary of byte-level BPE names each byte by a visible character: itself where it has one
// in Latin-1, else one of those from U+0100 on, in order (Radford et al., GPT-2, bytes_to_unicode).
json ByteVocabulary(int64_t size) {
  json vocabulary = json::object();
  int replaced = 0;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    const int code_point = IsPrintable(byte) ? byte : kNumBytes + replaced++;
    if (byte < size) vocabulary[Utf8(code_point)] = byte;
  }
  return vocabulary;
}

}  // namespace

std::string PrintByteTokenizer(int64_t vocab_size) {
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", ByteVocabulary(vocab_size)},
                      {"merges", json::array()}};
  return PrintJson({{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", json::array()},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", byte_level},
                    {"post_processor", nullptr},
                    {"decoder", byte_level},
                    {"model", model}});
}

std::string PrintTokenizerConfig(int64_t max_sequence_length) {
  return PrintJson({{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"model_max_length", max_sequence_length},
                    {"clean_up_tokenization_spaces", false}});
}

absl::StatusOr<std::string> ParseTokenizerName(absl::string_view tokenizer_json) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(tokenizer_json, kTokenizerName));
  const json model = object.value("model", json());
  if (model.is_object()) {
    const json vocabulary = model.value("vocab", json());
    const auto size = static_cast<int64_t>(vocabulary.size());
    const bool fits = vocabulary.is_object() && size > 0 && size <= kNumBytes;
    if (fits && model.value("merges", json()) == json::array() &&
        vocabulary == ByteVocabulary(size)) {
      return "bytes";
    }
  }
  return absl::UnimplementedError(
      "tokenizer.json is not the one of single bytes; no other is built in");
}

}  // namespace esteira
