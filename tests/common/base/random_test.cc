#include "common/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace esteira {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(RandomTest, PhiloxMatchesItsPublishedVectors) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, NormalHasTheRightMoments) {
  double sum = 0, squares = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = RandomNormal(3, 5, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
}

TEST(RandomTest, PermutationIsOneToOneForAnySize) {
  for (uint64_t size : {1, 2, 3, 5, 16, 17, 1000, 4097}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(RandomPermutation(9, 1, size, i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(RandomTest, SeedAndStreamChangeTheOrder) {
  int same_seed = 0, same_stream = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    same_seed += RandomPermutation(1, 1, 1000, i) == RandomPermutation(2, 1, 1000, i);
    same_stream += RandomPermutation(1, 1, 1000, i) == RandomPermutation(1, 2, 1000, i);
  }
  EXPECT_LT(same_seed, 20);
  EXPECT_LT(same_stream, 20);
}

}  // namespace
}  // namespace esteira
