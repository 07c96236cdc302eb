#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/data_identity.h"
#include "common/plan/job_spec.h"
#include "common/plan/layout.h"
#include "worker/communication/transport.h"
#include "worker/engine/engine.h"

namespace esteira {

class Publication;
struct RankOutcome;

struct CheckpointResult {
  std::string path;
  int64_t bytes = 0;     // rank 0 only
  absl::Status cleanup;  // rank 0 only: why `latest` could not be pointed at it, or an older
                         // checkpoint not be removed; the new one is good all the same
};

// One rank's part of writing checkpoints: collective over all ranks of the epoch. Within a stage
// the replicas send their shards to replica 0, piece by piece, which writes the stage's files; rank
// 0 writes the rest and the manifest, and gives the folder its name last. So a checkpoint is there
// whole or not at all, and what it holds does not depend on the layout. All ranks see one file
// system. Not thread-safe.
class CheckpointWriter {
 public:
  // `timeout` is for one message. `train`: as IdentifyData told it. `files` and `transport` outlive
  // the writer. Steps may run during Write, since its messages have tags of their own.
  CheckpointWriter(const JobSpec& job, const Layout& layout, std::vector<DataIdentity> train,
                   int rank, absl::Duration timeout, FileSystem& files, Transport& transport);

  // Writes <job.checkpoint_directory>/step-00000200, names it in `latest`, and then
  // removes older checkpoints beyond checkpoints_to_keep (0: none; those of later steps are left
  // alone). `updates`: Engine::updates.
  // `states`: Engine::States, or a copy while steps run. A failure on any rank is returned on every
  // rank, and leaves the earlier checkpoints as they were.
  absl::StatusOr<CheckpointResult> Write(int64_t step, int64_t updates,
                                         std::vector<UnitState> states);

 private:
  // Streams the stage's state to its replica 0; there, writes the stage's files.
  absl::StatusOr<RankOutcome> WriteStage(const std::string& folder, std::vector<UnitState> states);
  static absl::Status Publish(Publication& publication, int64_t updates,
                              const std::vector<RankOutcome>& outcomes, CheckpointResult& result);

  JobSpec job_;
  Layout layout_;
  std::vector<DataIdentity> train_;
  int rank_;
  absl::Duration timeout_;
  FileSystem& files_;
  Transport& transport_;
};

}  // namespace esteira
