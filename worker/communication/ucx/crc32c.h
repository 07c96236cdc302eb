#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace esteira {

// CRC-32C (Castagnoli, polynomial 0x1edc6f41, reflected) of a few hundred bytes; one table, no
// vector instructions.
uint32_t Crc32c(std::span<const std::byte> bytes);

}  // namespace esteira
