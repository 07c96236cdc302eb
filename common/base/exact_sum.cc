#include "common/base/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int kLimbBits = 32;
constexpr int64_t kLimbMask = (int64_t{1} << kLimbBits) - 1;
constexpr int kLowestExponent = -1074;  // of the last bit of the smallest subnormal
constexpr int64_t kMaxAdditions = int64_t{1} << 29;

}  // namespace

void ExactSum::Add(double value) {
  if (!std::isfinite(value)) {
    finite_ = false;
    return;
  }
  if (value == 0) return;
  const auto bits = std::bit_cast<uint64_t>(value);
  const int biased = static_cast<int>(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (biased != 0) mantissa |= uint64_t{1} << 52;
  const int shift = biased == 0 ? 0 : biased - 1;  // distance of the last bit from kLowestExponent
  const auto limb = static_cast<size_t>(shift / kLimbBits);
  const int offset = shift % kLimbBits;
  const int64_t sign = value < 0 ? -1 : 1;
  const uint64_t low = (mantissa << offset) & kLimbMask;
  const uint64_t rest = offset == 0 ? mantissa >> kLimbBits : mantissa >> (kLimbBits - offset);
  limbs_[limb] += sign * static_cast<int64_t>(low);
  limbs_[limb + 1] += sign * static_cast<int64_t>(rest & kLimbMask);
  limbs_[limb + 2] += sign * static_cast<int64_t>(rest >> kLimbBits);
  if (++additions_ >= kMaxAdditions) Normalise();
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum normal = other;
  normal.Normalise();
  Normalise();
  for (size_t i = 0; i < kNumLimbs; ++i) limbs_[i] += normal.limbs_[i];
  additions_ = 1;
  finite_ = finite_ && other.finite_;
}

// Brings every limb but the highest into [0, 2^32); the highest keeps the sign.
void ExactSum::Normalise() {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kNumLimbs; ++i) {
    const int64_t limb = limbs_[i] + carry;
    limbs_[i] = limb & kLimbMask;
    carry = limb >> kLimbBits;
  }
  limbs_[kNumLimbs - 1] += carry;
  additions_ = 0;
}

double ExactSum::Value() const {
  if (!finite_) return std::numeric_limits<double>::quiet_NaN();
  ExactSum sum = *this;
  sum.Normalise();
  const bool negative = sum.limbs_[kNumLimbs - 1] < 0;
  if (negative) {
    for (int64_t& limb : sum.limbs_) limb = -limb;
    sum.Normalise();
  }
  int top = kNumLimbs - 1;
  while (top >= 0 && sum.limbs_[static_cast<size_t>(top)] == 0) --top;
  if (top < 0) return 0;
  // The highest 64 bits exactly, the rest as one sticky bit: one rounding, to nearest even.
  const auto limb = [&](int i) {
    return i < 0 ? uint64_t{0} : static_cast<uint64_t>(sum.limbs_[static_cast<size_t>(i)]);
  };
  const int lead = std::countl_zero(static_cast<uint32_t>(limb(top)));
  uint64_t head = limb(top) << 32 | limb(top - 1);
  if (lead > 0) head = head << lead | limb(top - 2) >> (32 - lead);
  bool sticky = lead > 0 ? (limb(top - 2) << lead & kLimbMask) != 0 : limb(top - 2) != 0;
  for (int i = top - 3; i >= 0 && !sticky; --i) sticky = limb(i) != 0;
  int exponent = kLowestExponent + (top - 1) * kLimbBits - lead;  // of the last bit of `head`
  int drop = 64 - 53;
  if (exponent + drop < kLowestExponent)
    drop = kLowestExponent - exponent;  // subnormal: fewer bits
  if (drop >= 64) return 0;
  const uint64_t kept = head >> drop;
  const uint64_t rest = head << (64 - drop);
  const uint64_t half = uint64_t{1} << 63;
  const bool up = rest > half || (rest == half && (sticky || (kept & 1) != 0));
  const double magnitude = std::ldexp(static_cast<double>(kept + (up ? 1 : 0)), exponent + drop);
  return negative ? -magnitude : magnitude;
}

void ExactSum::Write(std::span<int64_t, kNumWords> words) const {
  ExactSum sum = *this;
  sum.Normalise();
  for (size_t i = 0; i < kNumLimbs; ++i) words[i] = sum.limbs_[i];
  words[kNumLimbs] = finite_ ? 1 : 0;
}

ExactSum ExactSum::Read(std::span<const int64_t, kNumWords> words) {
  ExactSum sum;
  for (size_t i = 0; i < kNumLimbs; ++i) sum.limbs_[i] = words[i];
  sum.finite_ = words[kNumLimbs] != 0;
  return sum;
}

}  // namespace esteira
