#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "worker/checkpoint/writer.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {

// A small model of each kind; sizes are odd, so that tensors end inside blocks and shards.
inline JobSpec SmallJob(Architecture architecture, bool tied, Precision precision) {
  JobSpec job;
  job.model = {architecture, 3,    12,   2,    architecture == Architecture::kGpt2 ? 2 : 1, 21, 31,
               10,           tied, 1e-5, 10000};
  job.train = {{"text.txt", 1}};
  job.sequence_length = 8;
  job.global_batch_size = 5;
  job.seed = 3;
  job.precision = precision;
  job.checkpoint_directory = "/ckpt";
  return job;
}

// What stands in the checkpoint directory beside `latest`, which every write leaves there.
inline std::vector<std::string> CheckpointsIn(FileSystem& files) {
  std::vector<std::string> names = *files.List("/ckpt");
  std::erase(names, "latest");
  std::erase(names, "latest.tmp");  // of a write of it that was interrupted
  return names;
}

inline constexpr int64_t kMicroBatch = 2;

// All ranks of a layout in one process, with states made by a formula of (unit, buffer, element,
// salt).
class Group {
 public:
  Group(int stages, int replicas) {
    layout_.stages = stages;
    layout_.replicas = replicas;
    layout_.micro_batch_size = kMicroBatch;
  }

  static float Value(int unit, int buffer, int64_t element, uint64_t salt) {
    const auto stream = static_cast<uint64_t>(unit * 3 + buffer);
    return static_cast<float>(RandomNormal(salt, stream, static_cast<uint64_t>(element)));
  }

  // What every rank returned, by rank. `files`: one each rank.
  std::vector<absl::StatusOr<CheckpointResult>> Write(const JobSpec& job, int64_t step,
                                                      const std::vector<FileSystem*>& files,
                                                      uint64_t salt = 0) {
    auto transports = MakeInprocTransports(layout_.num_ranks());
    std::vector<absl::StatusOr<CheckpointResult>> results(static_cast<size_t>(layout_.num_ranks()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<size_t>(rank);
        OwnedStates owned = MakeStates(job.model, rank, salt);
        CheckpointWriter writer(job, layout_, {}, rank, absl::Seconds(30), *files[index],
                                *transports[index]);
        results[index] = writer.Write(step, step - 1, owned.states);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  std::vector<absl::StatusOr<CheckpointResult>> Write(const JobSpec& job, int64_t step,
                                                      FileSystem& files, uint64_t salt = 0) {
    return Write(job, step,
                 std::vector<FileSystem*>(static_cast<size_t>(layout_.num_ranks()), &files), salt);
  }

  int num_ranks() const { return layout_.num_ranks(); }

 private:
  struct OwnedStates {
    std::vector<std::vector<float>> memory;
    std::vector<UnitState> states;
  };

  // Units are dealt to stages in turn, the ends of the tied table with the last.
  OwnedStates MakeStates(const ModelSpec& model, int rank, uint64_t salt) const {
    OwnedStates owned;
    const std::vector<UnitSpec> units = MakeUnits(model);
    for (int unit = static_cast<int>(units.size()) - 1; unit >= 0;
         --unit) {  // not in ascending order
      const UnitSpec& spec = units[static_cast<size_t>(unit)];
      if (unit % layout_.stages != layout_.StageOfRank(rank)) continue;
      if (spec.owner >= 0 || spec.flat_elements == 0) continue;
      const Range shard =
          ShardMap(spec.flat_elements, layout_.replicas).Valid(layout_.ReplicaOfRank(rank));
      if (shard.size() == 0) continue;  // padding only, as Engine::States leaves it out
      UnitState state{unit, shard.begin, shard.end, {}, {}, {}};
      for (int buffer = 0; buffer < 3; ++buffer) {
        std::vector<float>& values = owned.memory.emplace_back();
        for (int64_t i = shard.begin; i < shard.end; ++i)
          values.push_back(Value(unit, buffer, i, salt));
        (buffer == 0 ? state.master : buffer == 1 ? state.m : state.v) = values;
      }
      owned.states.push_back(state);
    }
    return owned;
  }

  Layout layout_;
};

}  // namespace esteira
