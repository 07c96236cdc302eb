#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace esteira {

// The exact sum of doubles: a fixed-point accumulator as wide as the whole range of a double
// (Kulisch), so that the result does not depend on the order or the grouping of the additions. It
// is how loss and gradient norm are formed.
//
// Each limb holds 32 bits of the number and 31 bits of carry headroom; Add normalises before the
// headroom ends. A value, not thread-safe. Non-finite input is remembered: Value() is then NaN.
class ExactSum {
 public:
  static constexpr int kNumLimbs = 68;  // 2098 bits of double range, plus headroom above

  void Add(double value);
  void Add(const ExactSum& other);

  // The sum, rounded once to the nearest double.
  double Value() const;
  bool finite() const { return finite_; }

  // The accumulator as integers, for the wire: limbs, then the finite flag.
  static constexpr int kNumWords = kNumLimbs + 1;
  void Write(std::span<int64_t, kNumWords> words) const;
  static ExactSum Read(std::span<const int64_t, kNumWords> words);

 private:
  void Normalise();

  std::array<int64_t, kNumLimbs> limbs_{};
  int64_t additions_ = 0;  // since the last Normalise
  bool finite_ = true;
};

}  // namespace esteira
