#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/checkpoint/data_identity.h"
#include "common/checkpoint/manifest.h"
#include "common/plan/job_spec.h"

namespace esteira {

// Gives a checkpoint back its name that an interrupted replacement had moved aside.
absl::Status UndoReplacements(FileSystem& files, const std::string& directory);

// What rank 0 does around the stages' files: makes the temporary folder, completes it, and gives it
// its name. All effects on folders of a checkpoint directory are here. Not thread-safe.
class Publication {
 public:
  // `train`: as IdentifyData told it. The arguments outlive this.
  Publication(const JobSpec& job, int64_t micro_batch_size, const std::vector<DataIdentity>& train,
              int64_t step, FileSystem& files);

  const std::string& path() const { return path_; }  // of the finished checkpoint
  const std::string& temporary_path() const { return temporary_; }

  // An empty temporary folder; whatever an interrupted attempt left is removed. FailedPrecondition
  // when the name is taken by something that is no whole checkpoint: it is not ours to remove.
  absl::Status Begin();
  // `stage_files`: as their writers reported them. Checks that they are there and hold every
  // parameter once, writes the small files, the manifest last, and renames the folder. A checkpoint
  // of the same step is replaced. Returns the bytes.
  absl::StatusOr<int64_t> Finish(int64_t updates, std::vector<ManifestFile> stage_files);
  // Removes the temporary folder.
  void Discard();
  // Names the checkpoint in `latest`.
  absl::Status PointLatest();
  // Removes whole checkpoints of earlier steps, so that with this one `keep` are left.
  absl::Status Prune(int64_t keep);

 private:
  absl::Status WriteSmallFiles(int64_t updates, std::vector<ManifestFile>& files);
  absl::StatusOr<std::string> MakeIndex(const std::vector<ManifestFile>& stage_files);
  absl::Status WriteFile(const std::string& name, const std::string& text,
                         std::vector<ManifestFile>& files);
  absl::Status CheckReplaceable();
  absl::Status GiveName();
  absl::Status RemoveCheckpoint(const std::string& path);

  const JobSpec& job_;
  const int64_t micro_batch_size_;
  const std::vector<DataIdentity>& train_;
  int64_t step_;
  FileSystem& files_;
  std::string path_;
  std::string temporary_;
};

}  // namespace esteira
