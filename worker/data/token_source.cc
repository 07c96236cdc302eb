#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/data_set.h"
#include "worker/data/jsonl_source.h"
#include "worker/data/token_file.h"
#include "worker/data/tokenizer.h"

namespace esteira {
namespace {

// llm.c's header: 256 little-endian int32, of which the first three are the magic, the version and
// the token count.
constexpr int64_t kHeaderBytes = int64_t{256} * 4;
constexpr int32_t kMagicUint16 = 20240520;
constexpr int32_t kMagicUint32 = 20240801;
constexpr int32_t kVersion = 1;
constexpr int64_t kScanTokens = int64_t{1} << 19;

// Where the tokens lie in a file.
struct TokenSpan {
  int64_t offset_bytes = 0;
  int64_t num_tokens = 0;
  int bytes_per_token = 1;
};

int32_t TokenAt(const char* bytes, int bytes_per_token) {
  const auto* unsigned_bytes = reinterpret_cast<const unsigned char*>(bytes);
  if (bytes_per_token == 1) return unsigned_bytes[0];
  return unsigned_bytes[0] | unsigned_bytes[1] << 8;
}

class FileTokenSource : public TokenSource {
 public:
  FileTokenSource(TokenFile file, TokenSpan span, int64_t sequence_length, int64_t vocab_size)
      : file_(std::move(file)),
        span_(span),
        sequence_length_(sequence_length),
        vocab_size_(vocab_size) {}

  int64_t num_samples() const override { return (span_.num_tokens - 1) / sequence_length_; }

  absl::Status Read(int64_t sample, std::span<int32_t> inputs,
                    std::span<int32_t> targets) const override {
    CHECK(sample >= 0 && sample < num_samples());
    std::vector<int32_t> tokens(static_cast<size_t>(sequence_length_) + 1);
    RETURN_IF_ERROR(ReadTokens(sample * sequence_length_, tokens));
    std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
    std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
    return absl::OkStatus();
  }

  // Every token of the file against the vocabulary.
  absl::Status Scan() const {
    const int64_t largest = span_.bytes_per_token == 1 ? 256 : 65536;
    if (vocab_size_ >= largest) return absl::OkStatus();
    std::vector<int32_t> tokens;
    for (int64_t first = 0; first < span_.num_tokens; first += kScanTokens) {
      tokens.resize(static_cast<size_t>(std::min(kScanTokens, span_.num_tokens - first)));
      RETURN_IF_ERROR(ReadTokens(first, tokens));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadTokens(int64_t first, std::span<int32_t> tokens) const {
    const int width = span_.bytes_per_token;
    std::vector<char> bytes(tokens.size() * static_cast<size_t>(width));
    RETURN_IF_ERROR(file_.ReadAt(span_.offset_bytes + first * width, bytes));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = TokenAt(bytes.data() + i * static_cast<size_t>(width), width);
      if (tokens[i] >= vocab_size_) {
        return absl::InvalidArgumentError(
            absl::StrCat("data file ", file_.path(), ": token ", tokens[i], " at position ",
                         first + static_cast<int64_t>(i),
                         " is outside the vocabulary (model.vocab_size is ", vocab_size_, ")"));
      }
    }
    return absl::OkStatus();
  }

  TokenFile file_;
  TokenSpan span_;
  int64_t sequence_length_;
  int64_t vocab_size_;
};

absl::StatusOr<TokenSpan> SpanOfLlmc(const TokenFile& file, const std::array<int32_t, 3>& header) {
  const auto& [magic, version, count] = header;
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", file.path(), ": llm.c version ",
                                                   version, " is not known; version 1 is"));
  }
  const int64_t available = (file.size_bytes() - kHeaderBytes) / 2;
  if (file.size_bytes() < kHeaderBytes || count < 0 || count > available) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data file ", file.path(), ": its header promises ", count, " tokens (",
        kHeaderBytes + int64_t{count} * 2, " bytes), the file has ", file.size_bytes(), " bytes"));
  }
  return TokenSpan{kHeaderBytes, count, 2};
}

absl::StatusOr<TokenSpan> SpanOfBinary(const TokenFile& file) {
  const std::string index = std::filesystem::path(file.path()).replace_extension(".idx").string();
  std::error_code error;
  if (std::filesystem::exists(index, error)) {
    return absl::UnimplementedError(absl::StrCat(
        "data file ", file.path(), ": it lies beside ", index,
        ", so it is Megatron's, which is not built in: convert it to llm.c's or nanoGPT's .bin"));
  }
  std::array<int32_t, 3> header{};
  const size_t header_bytes = std::min(sizeof(header), static_cast<size_t>(file.size_bytes()));
  RETURN_IF_ERROR(
      file.ReadAt(0, std::span<char>(reinterpret_cast<char*>(header.data()), header_bytes)));
  if (header[0] == kMagicUint16) return SpanOfLlmc(file, header);
  if (header[0] == kMagicUint32) {
    return absl::UnimplementedError(
        absl::StrCat("data file ", file.path(),
                     ": llm.c's uint32 tokens are not built in: write uint16 tokens"));
  }
  if (file.size_bytes() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", file.path(), ": ", file.size_bytes(),
                     " bytes are not whole uint16 tokens: it is cut short"));
  }
  return TokenSpan{0, file.size_bytes() / 2, 2};
}

absl::StatusOr<TokenSpan> SpanOf(const TokenFile& file, const std::string& tokenizer) {
  if (absl::EndsWith(file.path(), ".bin")) return SpanOfBinary(file);
  // The only tokenizer there is makes a token of each byte, so text is its own token file.
  RETURN_IF_ERROR(MakeTokenizer(tokenizer).status());
  return TokenSpan{0, file.size_bytes(), 1};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokenSource(const std::string& path,
                                                             const std::string& tokenizer,
                                                             int64_t sequence_length,
                                                             int64_t vocab_size) {
  if (sequence_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_length is ", sequence_length, ": it must be at least 1"));
  }
  ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(path));
  if (absl::EndsWith(path, ".jsonl")) {
    ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> encoder, MakeTokenizer(tokenizer));
    return OpenJsonlSource(std::move(file), std::move(encoder), sequence_length, vocab_size);
  }
  ASSIGN_OR_RETURN(const TokenSpan span, SpanOf(file, tokenizer));
  if (span.num_tokens < sequence_length + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", path, " has ", span.num_tokens, " tokens; one sample takes ",
                     sequence_length + 1, " (sequence_length ", sequence_length, " and one more)"));
  }
  auto source =
      std::make_unique<FileTokenSource>(std::move(file), span, sequence_length, vocab_size);
  RETURN_IF_ERROR(source->Scan());
  return source;
}

}  // namespace esteira
