// Which units each chunk holds.
#pragma once

#include <vector>

namespace esteira {

// Boundaries of `chunks` consecutive, non-empty ranges of units (boundaries[c] to boundaries[c +
// 1]) such that the most costly range costs as little as possible; among equals the
// lexicographically smallest boundaries. Exact. `costs` are not negative; 1 <= chunks <=
// costs.size().
std::vector<int> Partition(const std::vector<double>& costs, int chunks);

// The cost of the most costly range.
double SlowestRange(const std::vector<double>& costs, const std::vector<int>& boundaries);

}  // namespace esteira
