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

// The dynamic program over (first chunk, first unit).
class Partitioner {
 public:
  explicit Partitioner(const std::vector<std::vector<double>>& costs)
      : chunks_(costs.size()), units_(costs.front().size()) {
    CHECK(chunks_ >= 1 && chunks_ <= units_);
    for (const std::vector<double>& chunk : costs) prefixes_.push_back(Prefixes(chunk));
    const double never = std::numeric_limits<double>::infinity();
    best_.assign(chunks_ + 1, std::vector<double>(units_ + 1, never));
    best_[chunks_][units_] = 0;
    for (size_t c = chunks_; c-- > 0;) {
      for (size_t begin = c; begin + (chunks_ - c) <= units_; ++begin) Fill(c, begin);
    }
  }

  std::vector<int> Boundaries() const {
    std::vector<int> boundaries = {0};
    for (size_t c = 0; c < chunks_; ++c) {
      const auto begin = static_cast<size_t>(boundaries.back());
      size_t end = begin + 1;
      while (Split(c, begin, end) > best_[0][0]) ++end;
      boundaries.push_back(static_cast<int>(end));
    }
    return boundaries;
  }

 private:
  double Range(size_t chunk, size_t begin, size_t end) const {
    return prefixes_[chunk][end] - prefixes_[chunk][begin];
  }
  double Split(size_t chunk, size_t begin, size_t end) const {
    return std::max(Range(chunk, begin, end), best_[chunk + 1][end]);
  }
  void Fill(size_t chunk, size_t begin) {
    double& least = best_[chunk][begin];
    for (size_t end = begin + 1; end + (chunks_ - chunk - 1) <= units_; ++end) {
      least = std::min(least, Split(chunk, begin, end));
      if (Range(chunk, begin, end) > least) break;  // longer first ranges cost no less
    }
  }

  const size_t chunks_, units_;
  std::vector<std::vector<double>> prefixes_;  // by chunk
  // best_[c][i]: the slowest of the chunks from c on, over the units from i on, at its least.
  std::vector<std::vector<double>> best_;
};

}  // namespace

std::vector<int> Partition(const std::vector<std::vector<double>>& costs) {
  CHECK(!costs.empty());
  return Partitioner(costs).Boundaries();
}

std::vector<int> Partition(const std::vector<double>& costs, int chunks) {
  CHECK(chunks >= 1);
  return Partition(std::vector<std::vector<double>>(static_cast<size_t>(chunks), costs));
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
