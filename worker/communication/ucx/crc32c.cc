#include "worker/communication/ucx/crc32c.h"

#include <array>

namespace esteira {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
    }
    table[byte] = value;
  }
  return table;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = ~uint32_t{0};
  for (std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

}  // namespace esteira
