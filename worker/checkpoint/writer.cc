#include "worker/checkpoint/writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "worker/checkpoint/agreement.h"
#include "worker/checkpoint/publication.h"
#include "worker/checkpoint/stage_files.h"
#include "worker/checkpoint/state_stream.h"

namespace esteira {
namespace {

std::vector<int> RanksOfStage(const Layout& layout, int stage) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(layout.replicas));
  for (int replica = 0; replica < layout.replicas; ++replica) {
    ranks.push_back(layout.RankOf(stage, replica));
  }
  return ranks;
}

// An earlier checkpoint makes no room for its successor, since it goes only once that is whole.
absl::Status ExplainFullDisk(const absl::Status& status, const std::string& directory) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; ", directory,
      " must have room for one checkpoint more than are kept: an earlier one is removed only once "
      "its successor is whole"));
}

}  // namespace

CheckpointWriter::CheckpointWriter(const JobSpec& job, const Layout& layout,
                                   std::vector<DataIdentity> train, int rank,
                                   absl::Duration timeout, FileSystem& files, Transport& transport)
    : job_(job),
      layout_(layout),
      train_(std::move(train)),
      rank_(rank),
      timeout_(timeout),
      files_(files),
      transport_(transport) {}

absl::StatusOr<CheckpointResult> CheckpointWriter::Write(int64_t step, int64_t updates,
                                                         std::vector<UnitState> states) {
  Publication publication(job_, layout_.micro_batch_size, train_, step, files_);
  RETURN_IF_ERROR(
      BroadcastStatus(transport_, rank_ == 0 ? publication.Begin() : absl::OkStatus(), timeout_));
  CheckpointResult result;
  result.path = publication.path();
  const absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const RankOutcome mine,
                     WriteStage(publication.temporary_path(), std::move(states)));
    ASSIGN_OR_RETURN(const std::vector<RankOutcome> outcomes,
                     GatherOutcomes(transport_, mine, timeout_));
    const absl::Status verdict =
        rank_ == 0 ? Publish(publication, updates, outcomes, result) : absl::OkStatus();
    return BroadcastStatus(transport_, ExplainFullDisk(verdict, job_.checkpoint_directory),
                           timeout_);
  }();
  if (rank_ == 0 && !status.ok()) publication.Discard();
  RETURN_IF_ERROR(status);
  if (rank_ == 0) {
    // While `latest` names an older one, none is removed.
    result.cleanup = publication.PointLatest();
    if (result.cleanup.ok()) result.cleanup = publication.Prune(job_.checkpoints_to_keep);
  }
  return result;
}

absl::StatusOr<RankOutcome> CheckpointWriter::WriteStage(const std::string& folder,
                                                         std::vector<UnitState> states) {
  std::sort(states.begin(), states.end(),
            [](const UnitState& a, const UnitState& b) { return a.unit < b.unit; });
  const std::vector<UnitSpec> all_units = MakeUnits(job_.model);
  std::vector<UnitSpec> units;
  units.reserve(states.size());
  for (const UnitState& state : states) units.push_back(all_units[static_cast<size_t>(state.unit)]);

  const int stage = layout_.StageOfRank(rank_);
  const int replica = layout_.ReplicaOfRank(rank_);
  std::optional<StageFiles> stage_files;
  if (replica == 0)
    stage_files.emplace(files_, folder, stage, layout_.stages, job_.precision, units);
  StateStream stream(transport_, RanksOfStage(layout_, stage), replica, timeout_);
  for (size_t i = 0; i < states.size(); ++i) {
    const ShardMap shards(units[i].flat_elements, layout_.replicas);
    for (int buffer = 0; buffer < kNumStateBuffers; ++buffer) {
      RETURN_IF_ERROR(
          stream.Move(states[i], buffer, shards, [&](int64_t begin, std::span<const float> values) {
            stage_files->Append(units[i], buffer, begin, values);
          }));
    }
  }
  return stage_files ? stage_files->Finish() : RankOutcome{};
}

absl::Status CheckpointWriter::Publish(Publication& publication, int64_t updates,
                                       const std::vector<RankOutcome>& outcomes,
                                       CheckpointResult& result) {
  RETURN_IF_ERROR(FirstFailure(outcomes));
  std::vector<ManifestFile> stage_files;
  for (const RankOutcome& outcome : outcomes) {
    stage_files.insert(stage_files.end(), outcome.files.begin(), outcome.files.end());
  }
  ASSIGN_OR_RETURN(result.bytes, publication.Finish(updates, std::move(stage_files)));
  return absl::OkStatus();
}

}  // namespace esteira
