#include "worker/data/tokenizer.h"

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> Encode(absl::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string Decode(int32_t token) const override {
    if (token < 0 || token >= vocab_size()) return "";
    return std::string(1, static_cast<char>(token));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  return absl::UnimplementedError(
      absl::StrCat("tokenizer \"", name, "\" is not built in: use \"bytes\""));
}

}  // namespace esteira
