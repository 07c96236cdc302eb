#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "worker/data/data_set.h"

namespace esteira {
namespace {

// Draws of each source, in order.
std::vector<std::vector<int64_t>> Draw(const Sampler& sampler, size_t num_sources, int64_t count) {
  std::vector<std::vector<int64_t>> drawn(num_sources);
  for (int64_t i = 0; i < count; ++i) {
    const SampleId id = sampler.At(i);
    drawn.at(static_cast<size_t>(id.source)).push_back(id.sample);
  }
  return drawn;
}

struct Mix {
  std::vector<int64_t> sizes;
  std::vector<double> weights;
};

class SamplerMixTest : public testing::TestWithParam<Mix> {};

TEST_P(SamplerMixTest, EverySampleOncePerPassOfItsSource) {
  const Mix& mix = GetParam();
  const Sampler sampler(7, mix.sizes, mix.weights);
  const auto drawn = Draw(sampler, mix.sizes.size(), 20000);
  for (size_t source = 0; source < mix.sizes.size(); ++source) {
    const auto size = static_cast<size_t>(mix.sizes[source]);
    for (size_t pass = 0; (pass + 1) * size <= drawn[source].size(); ++pass) {
      const auto first = drawn[source].begin() + static_cast<int64_t>(pass * size);
      const std::set<int64_t> seen(first, first + mix.sizes[source]);
      ASSERT_EQ(seen.size(), size) << "source " << source << " pass " << pass;
      ASSERT_EQ(*seen.begin(), 0);
      ASSERT_EQ(*seen.rbegin(), mix.sizes[source] - 1);
    }
  }
}

TEST_P(SamplerMixTest, EveryPrefixHoldsEachShare) {
  const Mix& mix = GetParam();
  const Sampler sampler(7, mix.sizes, mix.weights);
  double total = 0;
  for (const double weight : mix.weights) total += weight;
  std::vector<int64_t> counts(mix.sizes.size());
  for (int64_t i = 0; i < 20000; ++i) {
    ++counts[static_cast<size_t>(sampler.At(i).source)];
    for (size_t source = 0; source < counts.size(); ++source) {
      const double expected = static_cast<double>(i + 1) * mix.weights[source] / total;
      ASSERT_LE(std::abs(static_cast<double>(counts[source]) - expected),
                static_cast<double>(counts.size()))
          << "source " << source << " after " << i + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, SamplerMixTest,
                         testing::Values(Mix{{1}, {1}}, Mix{{997}, {0.1}}, Mix{{4096}, {5}},
                                         Mix{{101, 103}, {3, 1}}, Mix{{5, 7001}, {1, 1}},
                                         Mix{{1, 2, 3}, {1, 1, 1}},
                                         Mix{{13, 1024, 2, 500}, {0.7, 0.1, 1e-3, 0.2}},
                                         Mix{{10, 10}, {1e9, 1}}, Mix{{10, 10}, {1, 1e9}}));

TEST(SamplerTest, ThreeToOne) {
  const auto drawn = Draw(Sampler(1, {1000, 1000}, {0.75, 0.25}), 2, 4000);
  EXPECT_EQ(drawn[0].size(), 3000u);
  EXPECT_EQ(drawn[1].size(), 1000u);
}

TEST(SamplerTest, PassesAndSourcesAreShuffledDifferently) {
  const auto drawn = Draw(Sampler(1, {211, 211}, {1, 1}), 2, 4 * 211);
  const std::vector<int64_t> first(drawn[0].begin(), drawn[0].begin() + 211);
  const std::vector<int64_t> second(drawn[0].begin() + 211, drawn[0].begin() + 422);
  const std::vector<int64_t> other(drawn[1].begin(), drawn[1].begin() + 211);
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST(SamplerTest, SeedsDiffer) {
  EXPECT_NE(Draw(Sampler(1, {100}, {1}), 1, 100), Draw(Sampler(2, {100}, {1}), 1, 100));
}

// A change of these numbers would change what a resumed run reads.
TEST(SamplerTest, TheOrderIsFixedForAllTime) {
  const Sampler sampler(42, {1000, 10}, {2, 1});
  std::vector<SampleId> order;
  for (const int64_t index : {0, 1, 2, 3, 999, 1000000007}) order.push_back(sampler.At(index));
  const std::vector<SampleId> expected = {{0, 720}, {1, 7}, {0, 972}, {0, 223}, {0, 303}, {0, 369}};
  EXPECT_EQ(order, expected);
}

TEST(SamplerTest, FarIndicesStayInRange) {
  const Sampler sampler(3, {7, 11}, {0.3, 0.7});
  for (int64_t i = 0; i < 1000; ++i) {
    const SampleId id = sampler.At((int64_t{1} << 50) + i);
    ASSERT_LT(id.sample, id.source == 0 ? 7 : 11);
  }
}

}  // namespace
}  // namespace esteira
