#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace esteira {

// A strong 64-bit mixer (the finaliser of SplitMix64): every input bit reaches every output bit.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// FNV-1a of `text`, mixed. The same on every machine and in every release: initial weights depend
// on it.
constexpr uint64_t HashName(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return Mix64(hash);
}

// SHA-256 of `bytes` in lower-case hex.
std::string Sha256Hex(absl::string_view bytes);

// `value` as 16 lower-case hex digits.
std::string Hex64(uint64_t value);

}  // namespace esteira
