#include "common/base/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

constexpr size_t kMaxIdBytes = 128;
constexpr size_t kMaxHostBytes = 253;
constexpr int kMaxPort = 65535;

bool IsDigitOrLetter(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }

bool IsHost(absl::string_view host) {
  if (host.empty() || host.size() > kMaxHostBytes) return false;
  if (host.front() == '[') {
    return host.size() > 2 && host.back() == ']' &&
           std::all_of(host.begin() + 1, host.end() - 1, [](char c) {
             return IsDigitOrLetter(c) || c == ':' || c == '.' || c == '%';
           });
  }
  return std::all_of(host.begin(), host.end(),
                     [](char c) { return IsDigitOrLetter(c) || c == '-' || c == '.' || c == '_'; });
}

// Digits only: no sign and no space.
bool ReadPort(absl::string_view text, int& port) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) &&
         absl::SimpleAtoi(text, &port) && port <= kMaxPort;
}

}  // namespace

absl::Status CheckWorkerId(absl::string_view id) {
  const bool good =
      !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
        return IsDigitOrLetter(c) || c == '-' || c == '_' || c == '.' || c == ':';
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "worker id: expected 1 to 128 letters, digits, or any of \"-_.:\"");
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address, int least_port) {
  const size_t colon = address.rfind(':');
  HostPort result;
  if (colon == absl::string_view::npos || !IsHost(address.substr(0, colon)) ||
      !ReadPort(address.substr(colon + 1), result.port) || result.port < least_port) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", absl::CHexEscape(address),
                                                   "\": expected host:port, e.g. 127.0.0.1:7070"));
  }
  result.host = std::string(address.substr(0, colon));
  return result;
}

}  // namespace esteira
