#include "common/base/random.h"

#include <cmath>
#include <numbers>

#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int kRounds = 10;

std::array<uint32_t, 4> Block(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t key = Mix64(seed ^ Mix64(stream));
  return Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

uint64_t Join(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto block = Block(seed, stream, index);
  return Join(block[0], block[1]);
}

double RandomUniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return ToUnit(RandomBits(seed, stream, index));
}

double RandomNormal(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto block = Block(seed, stream, index);
  const double u = 1.0 - ToUnit(Join(block[0], block[1]));  // in (0, 1]
  const double v = ToUnit(Join(block[2], block[3]));
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t RandomPermutation(uint64_t seed, uint64_t stream, uint64_t size, uint64_t index) {
  CHECK(index < size);
  int half_bits = 1;
  while (half_bits < 32 && (uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (RandomBits(seed, stream ^ Mix64(round), right) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= size);
  return value;
}

}  // namespace esteira
