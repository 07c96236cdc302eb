#include "coordinator/planner/partition.h"

#include <algorithm>
#include <limits>

#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;

// Every way to cut the units, in lexicographic order; the first of the best wins.
std::vector<int> BruteForce(const std::vector<double>& costs, int chunks) {
  const int units = static_cast<int>(costs.size());
  std::vector<int> best;
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> cuts(static_cast<size_t>(units) - 1, 0);
  std::fill(cuts.begin(), cuts.begin() + chunks - 1, 1);
  do {  // from the combination with the earliest cuts on
    std::vector<int> boundaries = {0};
    for (int i = 1; i < units; ++i) {
      if (cuts[static_cast<size_t>(i) - 1] == 1) boundaries.push_back(i);
    }
    boundaries.push_back(units);
    const double slowest = SlowestRange(costs, boundaries);
    if (slowest < least || (slowest == least && boundaries < best)) {
      least = slowest;
      best = boundaries;
    }
  } while (std::prev_permutation(cuts.begin(), cuts.end()));
  return best;
}

TEST(PartitionTest, EqualsBruteForceOnSmallCosts) {
  uint64_t random = 1;
  for (int units = 1; units <= 9; ++units) {
    for (int round = 0; round < 60; ++round) {
      std::vector<double> costs;
      for (int i = 0; i < units; ++i) {
        random = Mix64(random);
        costs.push_back(static_cast<double>(random % 5));  // whole numbers: many ties, some free
      }
      for (int chunks = 1; chunks <= units; ++chunks) {
        EXPECT_EQ(Partition(costs, chunks), BruteForce(costs, chunks))
            << units << " units, round " << round;
      }
    }
  }
}

TEST(PartitionTest, OneChunkHoldsEverything) {
  EXPECT_THAT(Partition({3, 1, 2}, 1), ElementsAre(0, 3));
}

TEST(PartitionTest, AsManyChunksAsUnits) {
  EXPECT_THAT(Partition({0, 5, 0}, 3), ElementsAre(0, 1, 2, 3));
}

TEST(PartitionTest, BalancesLayersThatDoNotDivide) {
  // An embedding that costs nothing, five layers, a head of two layers' cost, on four chunks.
  EXPECT_THAT(Partition({0, 1, 1, 1, 1, 1, 2}, 4), ElementsAre(0, 2, 4, 6, 7));
}

TEST(PartitionTest, ThousandUnitsOnManyChunks) {
  const std::vector<double> costs(1024, 1.0);
  EXPECT_EQ(SlowestRange(costs, Partition(costs, 100)), 11);
}

}  // namespace
}  // namespace esteira
