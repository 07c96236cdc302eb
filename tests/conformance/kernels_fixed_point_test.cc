// Sums in fixed point: every backend gives the integers of the reference.
#include <cmath>
#include <utility>

#include "tests/conformance/kernels_fixture.h"

namespace esteira {
namespace {

class FixedPointTest : public KernelsTest {
 protected:
  Twin Integers(int64_t n) {
    Twin twin{Allocate(1, n, ElementType::kInt64), Allocate(1, n, ElementType::kInt64)};
    for (int64_t i = 0; i < n; ++i) SetInteger(twin, i, 0);
    return twin;
  }
  static void SetInteger(const Twin& twin, int64_t i, int64_t value) {
    twin.tested.as<int64_t>()[i] = twin.expected.as<int64_t>()[i] = value;
  }
  Twin Flag() {
    Twin flag{Allocate(1, 1, ElementType::kInt32), Allocate(1, 1, ElementType::kInt32)};
    *flag.tested.as<int32_t>() = *flag.expected.as<int32_t>() = 0;
    return flag;
  }
  void Add(const Twin& x, float largest, const Twin& sum, const Twin& refused) {
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.AddFixedPoint(side(x), largest, side(sum), side(refused).as<int32_t>(), stream);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, FixedPointTest, testing::ValuesIn(KernelsParameters()), NameOf);

constexpr double kFixedPointUnit = 1.0 / (int64_t{1} << kFixedPointBits);

TEST_P(FixedPointTest, AddsAndClearsAndComesBack) {
  for (const int64_t n : {0, 1, 3, 16, 17, 64, 127, 1009, 40000}) {
    const Twin sum = Integers(n), refused = Flag(), back = Fp32(1, n), more = Integers(n);
    for (const double scale : {1.0, 1e-9, 1e4}) {
      const Twin x = Random(1, n, ElementType::kFp32, scale);
      for (int64_t i = 0; i < n; ++i) {
        if (i / 64 % 3 == 1) Set(x, i, i % 2 == 0 ? 0.0 : -0.0);  // whole blocks of zeros
      }
      Add(x, kLargestFixedPoint, sum, refused);
      ExpectSameBits(sum, "sum");
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x.tested.as<uint32_t>()[i] << 1, 0u) << i;
    }
    EXPECT_EQ(*refused.tested.as<int32_t>(), 0);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.FromFixedPoint(side(sum), side(back), stream);
      k.Accumulate(side(sum), side(more), stream);
      k.Accumulate(side(sum), side(more), stream);
    });
    ExpectSameBits(back, "back");
    ExpectSameBits(more, "more");
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(more.tested.as<int64_t>()[i], 2 * sum.tested.as<int64_t>()[i]);
      ASSERT_EQ(back.tested.as<float>()[i],
                static_cast<float>(static_cast<long double>(sum.tested.as<int64_t>()[i]) *
                                   static_cast<long double>(kFixedPointUnit)));
    }
  }
}

TEST_P(FixedPointTest, RoundsToNearestTiesToEven) {
  const std::pair<double, int64_t> cases[] = {{0.5, 0},
                                              {1.5, 2},
                                              {2.5, 2},
                                              {-0.5, 0},
                                              {-1.5, -2},
                                              {-2.5, -2},
                                              {0.49, 0},
                                              {0.51, 1},
                                              {-0.49, 0},
                                              {-0.51, -1},
                                              {1, 1},
                                              {-3, -3},
                                              {0x1p23, 0x800000},
                                              {0x1p23 + 1, 0x800001},
                                              {0x1p50, int64_t{1} << 50},
                                              {0x1p51, int64_t{1} << 51},
                                              {-0x1p51, -(int64_t{1} << 51)},
                                              {0x1.fffffep61, 0x3fffffc000000000},
                                              {-0x1p62, -(int64_t{1} << 62)}};
  const auto n = static_cast<int64_t>(std::size(cases));
  const Twin x = Fp32(1, n), sum = Integers(n), refused = Flag();
  for (int64_t i = 0; i < n; ++i) Set(x, i, cases[i].first * kFixedPointUnit);
  Add(x, kLargestFixedPoint, sum, refused);
  EXPECT_EQ(*refused.tested.as<int32_t>(), 0);
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(sum.tested.as<int64_t>()[i], cases[i].second) << cases[i].first;
  }
}

TEST_P(FixedPointTest, WhatDoesNotFitAddsNothingAndIsTold) {
  for (const int64_t n : {1, 16, 33, 64, 100, 40000}) {
    for (const double bad : {1000.0625, -1000.0625, HUGE_VAL, -HUGE_VAL, std::nan(""), 3e38}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        const Twin x = Fp32(1, n), sum = Integers(n), refused = Flag();
        Add(x, 1000, sum, refused);
        ASSERT_EQ(*refused.tested.as<int32_t>(), 0);
        Set(x, at, bad);
        const int64_t before = sum.tested.as<int64_t>()[at];
        Add(x, 1000, sum, refused);
        ASSERT_EQ(*refused.tested.as<int32_t>(), 1) << bad << " at " << at;
        ASSERT_EQ(sum.tested.as<int64_t>()[at], before);
        ASSERT_EQ(ValueAt(x.tested, at), 0);
        ExpectSameBits(sum, "sum");
        Set(x, at, bad > 0 ? 1000 : -1000);  // the largest itself fits
        const Twin again = Flag();
        Add(x, 1000, sum, again);
        ASSERT_EQ(*again.tested.as<int32_t>(), 0);
        ASSERT_NE(sum.tested.as<int64_t>()[at], before);
      }
    }
  }
}

}  // namespace
}  // namespace esteira
