#pragma once

#include <algorithm>
#include <cstdint>

namespace esteira {

// A half-open range of elements of a unit's flat buffer.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// How the flat buffer of a unit is divided over the replicas: equal contiguous shards, each a
// multiple of kBlockElements, so the buffer is padded to `padded_elements`. Pure; used by planner,
// engine and checkpoints alike.
class ShardMap {
 public:
  // `flat_elements` is UnitSpec::flat_elements.
  ShardMap(int64_t flat_elements, int replicas);

  int64_t padded_elements() const { return shard_elements_ * replicas_; }
  int64_t shard_elements() const { return shard_elements_; }
  int replicas() const { return replicas_; }
  Range Shard(int replica) const {
    return {replica * shard_elements_, (replica + 1) * shard_elements_};
  }
  // The shard without the padding: what of it is state. Empty for a replica that holds only
  // padding.
  Range Valid(int replica) const {
    const Range shard = Shard(replica);
    return {std::min(shard.begin, flat_elements_), std::min(shard.end, flat_elements_)};
  }

 private:
  int replicas_;
  int64_t flat_elements_;
  int64_t shard_elements_;
};

}  // namespace esteira
