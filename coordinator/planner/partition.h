// Which units each chunk holds.
#pragma once

#include <vector>

namespace esteira {

// Boundaries of consecutive, non-empty ranges of units, one for each chunk (boundaries[c] to
// boundaries[c + 1]), such that the most costly range costs as little as possible; among equals the
// lexicographically smallest boundaries. Exact. costs[c][u]: of unit u when chunk c holds it, not
// negative; as many for each chunk, and at least as many units as chunks.
std::vector<int> Partition(const std::vector<std::vector<double>>& costs);
// Units that cost the same wherever they are.
std::vector<int> Partition(const std::vector<double>& costs, int chunks);

// The cost of the most costly range.
double SlowestRange(const std::vector<double>& costs, const std::vector<int>& boundaries);

}  // namespace esteira
