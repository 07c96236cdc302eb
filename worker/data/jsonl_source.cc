#include "worker/data/jsonl_source.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace esteira {
namespace {

using nlohmann::json;

constexpr int32_t kIgnored = -100;
constexpr int64_t kScanBytes = int64_t{1} << 20;

// The tokens of a sample and, for each, whether and as what it is to be predicted.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
};

absl::StatusOr<std::vector<int32_t>> Integers(const json& object, const char* name) {
  const json& list = object.at(name);
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a list of numbers"));
  }
  std::vector<int32_t> numbers;
  numbers.reserve(list.size());
  for (const json& element : list) {
    const bool fits = element.is_number_integer() &&
                      (!element.is_number_unsigned() ||
                       element.get<uint64_t>() <= std::numeric_limits<int32_t>::max()) &&
                      element.get<int64_t>() >= std::numeric_limits<int32_t>::min() &&
                      element.get<int64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" has ", element.dump(), ", which is no token"));
    }
    numbers.push_back(element.get<int32_t>());
  }
  return numbers;
}

absl::StatusOr<std::string> Text(const json& object, const char* name) {
  const json& text = object.at(name);
  if (text.is_string()) return text.get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a string"));
}

// Fields beside those that are named would be ignored, and what they were for with them.
absl::Status OnlyFields(const json& object, std::initializer_list<absl::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    const absl::string_view field(name);
    if (std::find(known.begin(), known.end(), field) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown field ", json(name).dump(-1, ' ', true, json::error_handler_t::replace),
          "; a line has tokens and labels, prompt and completion, or text"));
    }
  }
  return absl::OkStatus();
}

class JsonlSource : public TokenSource {
 public:
  JsonlSource(TokenFile file, std::unique_ptr<Tokenizer> tokenizer, int64_t sequence_length,
              int64_t vocab_size)
      : file_(std::move(file)),
        tokenizer_(std::move(tokenizer)),
        sequence_length_(sequence_length),
        vocab_size_(vocab_size) {}

  int64_t num_samples() const override { return static_cast<int64_t>(starts_.size()); }

  absl::Status Read(int64_t sample, std::span<int32_t> inputs,
                    std::span<int32_t> targets) const override {
    CHECK(sample >= 0 && sample < num_samples());
    const auto index = static_cast<size_t>(sample);
    std::string line(static_cast<size_t>(lengths_[index]), '\0');
    RETURN_IF_ERROR(file_.ReadAt(starts_[index], std::span<char>(line)));
    ASSIGN_OR_RETURN(const Sample read, Parse(line, starts_[index]));
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnored);
    for (size_t t = 0; t + 1 < read.tokens.size(); ++t) {
      inputs[t] = read.tokens[t];
      targets[t] = read.labels[t + 1];
    }
    return absl::OkStatus();
  }

  // Finds the lines and checks each.
  absl::Status Scan() {
    std::string line;
    int64_t start = 0;
    for (int64_t offset = 0; offset < file_.size_bytes(); offset += kScanBytes) {
      std::string bytes(static_cast<size_t>(std::min(kScanBytes, file_.size_bytes() - offset)),
                        '\0');
      RETURN_IF_ERROR(file_.ReadAt(offset, std::span<char>(bytes)));
      for (size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != '\n') {
          line.push_back(bytes[i]);
          continue;
        }
        RETURN_IF_ERROR(AddLine(line, start));
        start = offset + static_cast<int64_t>(i) + 1;
        line.clear();
      }
    }
    RETURN_IF_ERROR(AddLine(line, start));
    if (!starts_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", file_.path(), " has no line; one sample takes one"));
  }

 private:
  absl::Status AddLine(const std::string& line, int64_t start) {
    ++line_number_;
    if (absl::StripAsciiWhitespace(line).empty()) return absl::OkStatus();
    const absl::StatusOr<Sample> sample = Parse(line, start);
    if (!sample.ok()) return sample.status();
    starts_.push_back(start);
    lengths_.push_back(static_cast<int32_t>(line.size()));
    return absl::OkStatus();
  }

  absl::StatusOr<Sample> Parse(const std::string& line, int64_t start) const {
    absl::StatusOr<Sample> sample = ParseLine(line);
    if (sample.ok()) return sample;
    // While the file is scanned its lines are counted; later a line is known by its place.
    return absl::InvalidArgumentError(absl::StrCat("data file ", file_.path(), ", line ",
                                                   line_number_, " (byte ", start,
                                                   "): ", sample.status().message()));
  }

  absl::StatusOr<Sample> ParseLine(const std::string& line) const {
    if (line.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError("the line is longer than 2 GiB");
    }
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
    ASSIGN_OR_RETURN(Sample sample, SampleOf(object));
    return Checked(std::move(sample));
  }

  absl::StatusOr<Sample> SampleOf(const json& object) const {
    Sample sample;
    if (object.contains("tokens")) {
      RETURN_IF_ERROR(OnlyFields(object, {"tokens", "labels"}));
      ASSIGN_OR_RETURN(sample.tokens, Integers(object, "tokens"));
      sample.labels = sample.tokens;
      if (object.contains("labels")) {
        ASSIGN_OR_RETURN(sample.labels, Integers(object, "labels"));
      }
      return sample;
    }
    if (object.contains("prompt") && object.contains("completion")) {
      RETURN_IF_ERROR(OnlyFields(object, {"prompt", "completion"}));
      ASSIGN_OR_RETURN(const std::string prompt, Text(object, "prompt"));
      ASSIGN_OR_RETURN(const std::string completion, Text(object, "completion"));
      sample.tokens = tokenizer_->Encode(prompt);
      sample.labels.assign(sample.tokens.size(), kIgnored);
      for (int32_t token : tokenizer_->Encode(completion)) {
        sample.tokens.push_back(token);
        sample.labels.push_back(token);
      }
      return sample;
    }
    if (object.contains("text")) {
      RETURN_IF_ERROR(OnlyFields(object, {"text"}));
      ASSIGN_OR_RETURN(const std::string text, Text(object, "text"));
      sample.tokens = tokenizer_->Encode(text);
      sample.labels = sample.tokens;
      return sample;
    }
    return absl::InvalidArgumentError("has neither tokens, nor prompt and completion, nor text");
  }

  absl::StatusOr<Sample> Checked(Sample sample) const {
    if (sample.labels.size() != sample.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat(sample.tokens.size(), " tokens and ",
                                                     sample.labels.size(),
                                                     " labels; give one label for each token"));
    }
    const auto count = static_cast<int64_t>(sample.tokens.size());
    if (count < 2 || count > sequence_length_ + 1) {
      return absl::InvalidArgumentError(absl::StrCat(count, " tokens; a sample has from 2 to ",
                                                     sequence_length_ + 1,
                                                     " (data.sequence_length and one more)"));
    }
    for (size_t i = 0; i < sample.tokens.size(); ++i) {
      const int32_t token = sample.tokens[i], label = sample.labels[i];
      if (token < 0 || token >= vocab_size_) {
        return absl::InvalidArgumentError(
            absl::StrCat("token ", token, " at position ", i,
                         " is outside the vocabulary (model.vocab_size is ", vocab_size_, ")"));
      }
      if (label != kIgnored && (label < 0 || label >= vocab_size_)) {
        return absl::InvalidArgumentError(absl::StrCat("label ", label, " at position ", i,
                                                       " is neither -100 nor in the vocabulary"));
      }
    }
    return sample;
  }

  TokenFile file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  int64_t line_number_ = 0;      // of the line that is scanned
  std::vector<int64_t> starts_;  // by sample
  std::vector<int32_t> lengths_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSource>> OpenJsonlSource(TokenFile file,
                                                             std::unique_ptr<Tokenizer> tokenizer,
                                                             int64_t sequence_length,
                                                             int64_t vocab_size) {
  auto source = std::make_unique<JsonlSource>(std::move(file), std::move(tokenizer),
                                              sequence_length, vocab_size);
  RETURN_IF_ERROR(source->Scan());
  return source;
}

}  // namespace esteira
