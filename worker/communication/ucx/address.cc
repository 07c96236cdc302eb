#include "worker/communication/ucx/address.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/communication/ucx/crc32c.h"

namespace esteira {
namespace {

constexpr absl::string_view kMagic = "EUCX";
constexpr size_t kPrefixBytes = 12;

uint32_t Checksum(absl::string_view body) {
  return Crc32c(std::as_bytes(std::span(body.data(), body.size())));
}

void AppendWord(uint32_t word, std::string* out) {
  char bytes[sizeof(word)];
  std::memcpy(bytes, &word, sizeof(word));
  out->append(bytes, sizeof(bytes));
}

uint32_t ReadWord(absl::string_view bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof(word));
  return word;
}

}  // namespace

std::string WrapAddress(absl::string_view body) {
  std::string address(kMagic);
  AppendWord(static_cast<uint32_t>(body.size()), &address);
  AppendWord(Checksum(body), &address);
  address.append(body.data(), body.size());
  return address;
}

absl::StatusOr<std::string> UnwrapAddress(absl::string_view address) {
  if (address.size() < kPrefixBytes || address.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("it is not an address of this transport");
  }
  const absl::string_view body = address.substr(kPrefixBytes);
  const uint32_t length = ReadWord(address.substr(4));
  if (length != body.size() || body.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", body.size(), " bytes where ", length, " were announced"));
  }
  if (ReadWord(address.substr(8)) != Checksum(body)) {
    return absl::InvalidArgumentError("its checksum does not match");
  }
  return std::string(body);
}

}  // namespace esteira
