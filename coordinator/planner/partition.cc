#include "coordinator/planner/partition.h"

#include <algorithm>
#include <limits>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

std::vector<double> Prefixes(const std::vector<double>& costs) {
  std::vector<double> prefixes = {0};
  for (double cost : costs) prefixes.push_back(prefixes.back() + cost);
  return prefixes;
}

}  // namespace

std::vector<int> Partition(const std::vector<double>& costs, int chunks) {
  const int units = static_cast<int>(costs.size());
  CHECK(chunks >= 1 && chunks <= units);
  const std::vector<double> prefixes = Prefixes(costs);
  const auto range = [&](int begin, int end) {
    return prefixes[static_cast<size_t>(end)] - prefixes[static_cast<size_t>(begin)];
  };
  // best[c][i]: the slowest of c ranges over the units from i on, at its least.
  const double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(static_cast<size_t>(chunks) + 1,
                                        std::vector<double>(static_cast<size_t>(units) + 1, never));
  best[0][static_cast<size_t>(units)] = 0;
  const auto split = [&](int c, int begin, int end) {
    return std::max(range(begin, end), best[static_cast<size_t>(c) - 1][static_cast<size_t>(end)]);
  };
  for (int c = 1; c <= chunks; ++c) {
    for (int begin = units - c; begin >= 0; --begin) {
      double& least = best[static_cast<size_t>(c)][static_cast<size_t>(begin)];
      for (int end = begin + 1; end <= units - c + 1; ++end) {
        least = std::min(least, split(c, begin, end));
        if (range(begin, end) > least) break;  // longer first ranges cost no less
      }
    }
  }
  const double optimum = best[static_cast<size_t>(chunks)][0];
  std::vector<int> boundaries = {0};
  for (int c = chunks; c >= 1; --c) {
    int end = boundaries.back() + 1;
    while (split(c, boundaries.back(), end) > optimum) ++end;
    boundaries.push_back(end);
  }
  return boundaries;
}

double SlowestRange(const std::vector<double>& costs, const std::vector<int>& boundaries) {
  const std::vector<double> prefixes = Prefixes(costs);
  double slowest = 0;
  for (size_t c = 0; c + 1 < boundaries.size(); ++c) {
    slowest = std::max(slowest, prefixes[static_cast<size_t>(boundaries[c + 1])] -
                                    prefixes[static_cast<size_t>(boundaries[c])]);
  }
  return slowest;
}

}  // namespace esteira
