#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "common/base/random.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// What DropoutMask means, for every backend on the host: element e of a sample, counted through its
// rows, is kept when the 16 bits that are its own are not below rate * 2^16.
class DropoutRow {
 public:
  explicit DropoutRow(const DropoutMask& mask)
      : mask_(mask),
        threshold_(static_cast<uint32_t>(std::lround(mask.rate * kSteps))),
        scale_(static_cast<float>(kSteps / (kSteps - threshold_))) {}

  // Elements [first, first + values.size()) of row `n` of `columns`.
  void Apply(int64_t n, int64_t columns, int64_t first, std::span<float> values) const {
    const int64_t sample = mask_.first_sample + n / mask_.sequence;
    const uint64_t key = RandomBits(mask_.seed, mask_.site, static_cast<uint64_t>(sample));
    const auto begin = static_cast<uint64_t>(n % mask_.sequence * columns + first);
    uint64_t word = RandomWord(key, begin / kElementsOfWord);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t element = begin + i;
      const uint64_t part = element % kElementsOfWord;
      if (part == 0) word = RandomWord(key, element / kElementsOfWord);
      const auto bits = static_cast<uint32_t>(word >> (16 * part)) & 0xffffu;
      values[i] = bits < threshold_ ? 0.0f : values[i] * scale_;
    }
  }

 private:
  static constexpr double kSteps = 65536;
  static constexpr uint64_t kElementsOfWord = 4;

  DropoutMask mask_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace esteira
