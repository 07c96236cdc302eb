#include "worker/inference/utf8_stream.h"

#include <cstdint>

namespace esteira {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

bool IsContinuation(unsigned char byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the character that begins with `lead`; 0 when none does.
size_t LengthOf(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// The second byte's range is narrower after some leads: no overlong forms, surrogates or values
// beyond U+10FFFF.
bool IsSecond(unsigned char lead, unsigned char byte) {
  if (lead == 0xe0) return byte >= 0xa0 && byte <= 0xbf;
  if (lead == 0xed) return byte >= 0x80 && byte <= 0x9f;
  if (lead == 0xf0) return byte >= 0x90 && byte <= 0xbf;
  if (lead == 0xf4) return byte >= 0x80 && byte <= 0x8f;
  return IsContinuation(byte);
}

bool IsControl(unsigned char byte) {
  return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
}

// How many of the first bytes can belong to one character: all of `length`, or less when a byte
// does not fit.
size_t FittingBytes(absl::string_view text, size_t length) {
  size_t count = 1;
  while (count < length && count < text.size()) {
    const auto byte = static_cast<unsigned char>(text[count]);
    const bool fits =
        count == 1 ? IsSecond(static_cast<unsigned char>(text[0]), byte) : IsContinuation(byte);
    if (!fits) break;
    ++count;
  }
  return count;
}

}  // namespace

std::string Utf8Stream::Push(absl::string_view bytes) {
  waiting_.append(bytes.data(), bytes.size());
  absl::string_view rest = waiting_;
  std::string text;
  while (!rest.empty()) {
    const auto lead = static_cast<unsigned char>(rest[0]);
    const size_t length = LengthOf(lead);
    const size_t fitting = length == 0 ? 1 : FittingBytes(rest, length);
    if (fitting < length && fitting == rest.size()) break;  // the rest may still come
    // U+0080 to U+009F, c2 80 to c2 9f, are controls too.
    const bool control =
        IsControl(lead) || (lead == 0xc2 && static_cast<unsigned char>(rest[1]) < 0xa0);
    if (fitting == length && !control) {
      text.append(rest.data(), length);
    } else {
      text += kReplacement;
    }
    rest.remove_prefix(fitting);
  }
  waiting_ = std::string(rest);
  return text;
}

std::string Utf8Stream::Finish() {
  const bool cut = !waiting_.empty();
  waiting_.clear();
  return cut ? kReplacement : "";
}

}  // namespace esteira
