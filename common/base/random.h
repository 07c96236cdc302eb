// Counter-based random numbers: each value is a pure function of (seed, stream, index), so that no
// layout, order or restart can change it. Nothing here has state.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/hash.h"

namespace esteira {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): one block
// of four words.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform over 64 bits. `stream` separates uses (a hash of a name), `index` counts within it.
uint64_t RandomBits(uint64_t seed, uint64_t stream, uint64_t index);

// Uniform in [0, 1) with 53 bits.
double RandomUniform(uint64_t seed, uint64_t stream, uint64_t index);

// Standard normal (Box-Muller on one Philox block).
double RandomNormal(uint64_t seed, uint64_t stream, uint64_t index);

// 64 bits of a few instructions each: output `index` of SplitMix64 (Steele et al., OOPSLA 2014)
// from the state `key`, which a better generator has chosen.
inline uint64_t RandomWord(uint64_t key, uint64_t index) {
  return Mix64(key + index * 0x9e3779b97f4a7c15ULL);
}

// The image of `index` under a permutation of [0, size) that `seed` and `stream` choose: a Feistel
// network over the next even power of two with cycle walking, so it needs no memory. Requires index
// < size.
uint64_t RandomPermutation(uint64_t seed, uint64_t stream, uint64_t size, uint64_t index);

}  // namespace esteira
