#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/data/data_set.h"

namespace esteira {
namespace {

constexpr double kWeightScale = 4294967296.0;  // 2^32

// How many of `count` draws fall to a part of `weight` in `total`: rounded to nearest, exactly, so
// that it never decreases with `count` and never grows by more than one.
int64_t Share(int64_t count, uint64_t weight, uint64_t total) {
  CHECK(total > 0);
  const auto product = static_cast<unsigned __int128>(count) * weight + total / 2;
  return static_cast<int64_t>(product / total);
}

}  // namespace

Sampler::Sampler(uint64_t seed, std::vector<int64_t> num_samples,
                 const std::vector<double>& weights)
    : seed_(seed), num_samples_(std::move(num_samples)) {
  CHECK(!num_samples_.empty() && num_samples_.size() == weights.size());
  double total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    CHECK(num_samples_[i] > 0 && weights[i] > 0);
    total += weights[i];
  }
  for (const double weight : weights) {
    const double scaled = std::nearbyint(weight / total * kWeightScale);
    weights_.push_back(std::max(uint64_t{1}, static_cast<uint64_t>(scaled)));
  }
}

SampleId Sampler::At(int64_t global_index) const {
  CHECK(global_index >= 0);
  uint64_t remaining = 0;
  for (const uint64_t weight : weights_) remaining += weight;
  // Source by source: the draws of the first are spread evenly, what is left goes to the others by
  // the same rule.
  int64_t index = global_index;
  size_t source = 0;
  for (; source + 1 < weights_.size(); ++source) {
    const int64_t before = Share(index, weights_[source], remaining);
    if (Share(index + 1, weights_[source], remaining) > before) {
      index = before;
      break;
    }
    index -= before;
    remaining -= weights_[source];
  }
  const int64_t size = num_samples_[source];
  const auto pass = static_cast<uint64_t>(index / size);
  const uint64_t stream = HashName("sampler") ^ Mix64(Mix64(source) ^ pass);
  const uint64_t sample = RandomPermutation(seed_, stream, static_cast<uint64_t>(size),
                                            static_cast<uint64_t>(index % size));
  return {static_cast<int>(source), static_cast<int64_t>(sample)};
}

}  // namespace esteira
