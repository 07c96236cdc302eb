#include "worker/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace esteira {

int32_t SampleToken(std::span<const float> logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<double> cumulative(logits.size());
  double total = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    total += std::exp((static_cast<double>(logits[token]) - static_cast<double>(*largest)) /
                      temperature);
    cumulative[token] = total;
  }
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  const auto last = static_cast<int64_t>(logits.size()) - 1;
  return static_cast<int32_t>(std::min(found - cumulative.begin(), last));
}

}  // namespace esteira
