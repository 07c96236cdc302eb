#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/plan/shard_map.h"
#include "worker/communication/transport.h"
#include "worker/engine/engine.h"

namespace esteira {

// The three buffers of a unit's state, in the order in which they travel.
inline constexpr int kNumStateBuffers = static_cast<int>(kStateSuffixes.size());
std::span<float> StateBuffer(const UnitState& state, int buffer);  // 0 master, 1 m, 2 v

// The replicas' shards of one state buffer, put together at replica 0 in pieces, so that memory
// stays bounded whatever the unit's size. Padding does not travel: a shard is ShardMap::Valid.
// `ranks`: of the stage, by replica. Those that hold a part of a unit call for the same unit and
// buffer in the same order.
class StateStream {
 public:
  StateStream(Transport& transport, std::vector<int> ranks, int replica, absl::Duration timeout);

  // Replica 0: calls `consume` with each piece and its first element in the flat buffer, ascending,
  // without holes. The others send theirs. Returns failures of the transport only.
  using Consumer = std::function<void(int64_t begin, std::span<const float> values)>;
  absl::Status Move(const UnitState& state, int buffer, const ShardMap& shards,
                    const Consumer& consume);

 private:
  absl::Status Send(const UnitState& state, int buffer);
  absl::Status Receive(int unit, int buffer, int replica, const Range& valid,
                       const Consumer& consume);

  Transport& transport_;
  std::vector<int> ranks_;
  int replica_;
  absl::Duration timeout_;
  std::vector<float> piece_;
};

}  // namespace esteira
