#include "coordinator/job/step_record.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace esteira {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char text[32];
  const std::to_chars_result result = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, result.ptr);
}

std::string Quoted(absl::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&result, "\\", std::string(1, c));
    } else if (byte < 0x20) {
      absl::StrAppend(&result, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      result.push_back(c);
    }
  }
  return result + "\"";
}

}  // namespace

std::string BitsOf(double value) { return Hex64(std::bit_cast<uint64_t>(value)); }

std::string ToJson(const StepRecord& record) {
  std::string json =
      absl::StrCat("{\"step\":", record.step, ",\"loss\":", Number(record.loss),
                   ",\"gradient_norm\":", Number(record.gradient_norm),
                   ",\"learning_rate\":", Number(record.learning_rate),
                   ",\"tokens\":", record.tokens, ",\"valid_tokens\":", record.valid_tokens,
                   ",\"skipped\":", record.skipped ? "true" : "false");
  absl::StrAppend(&json, ",\"step_seconds\":", Number(record.step_seconds),
                  ",\"tokens_per_second\":", Number(record.tokens_per_second),
                  ",\"model_flops_utilization\":", Number(record.model_flops_utilization),
                  ",\"bubble_ratio\":", Number(record.bubble_ratio),
                  ",\"exposed_communication_ratio\":", Number(record.exposed_communication_ratio),
                  ",\"parameter_hash\":", Quoted(record.parameter_hash),
                  ",\"epoch\":", record.epoch);
  absl::StrAppend(&json, ",\"loss_bits\":", Quoted(BitsOf(record.loss)),
                  ",\"gradient_norm_bits\":", Quoted(BitsOf(record.gradient_norm)));
  if (!record.skip_cause.empty())
    absl::StrAppend(&json, ",\"skip_cause\":", Quoted(record.skip_cause));
  if (record.validation_loss) {
    absl::StrAppend(&json, ",\"validation_loss\":", Number(*record.validation_loss));
  }
  return json + "}";
}

}  // namespace esteira
