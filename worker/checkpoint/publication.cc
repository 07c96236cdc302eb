#include "worker/checkpoint/publication.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tokenizer_files.h"
#include "common/checkpoint/trainer_state.h"

namespace esteira {
namespace {

constexpr char kTemporaryPrefix[] = ".tmp-step-";
constexpr char kReplacedPrefix[] =
    ".replaced-";  // a checkpoint whose successor of the same step gets its name
constexpr char kRemovedPrefix[] = ".removed-";

bool IsLeftover(const std::string& name) {
  return absl::StartsWith(name, kTemporaryPrefix) || absl::StartsWith(name, kRemovedPrefix);
}

// The tokenizer of the job says how text became tokens; token files were made by another one that
// we do not know.
bool HasText(const JobSpec& job) {
  const auto is_text = [](const DataSource& source) {
    return !absl::EndsWith(source.path, ".bin");
  };
  return std::any_of(job.train.begin(), job.train.end(), is_text);
}

}  // namespace

absl::Status UndoReplacements(FileSystem& files, const std::string& directory) {
  if (!files.Exists(directory)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kReplacedPrefix)) continue;
    const std::string replaced = absl::StrCat(directory, "/", name);
    const std::string original =
        absl::StrCat(directory, "/", name.substr(absl::string_view(kReplacedPrefix).size()));
    RETURN_IF_ERROR(files.Exists(original) ? files.RemoveAll(replaced)
                                           : files.Rename(replaced, original));
  }
  return absl::OkStatus();
}

Publication::Publication(const JobSpec& job, int64_t micro_batch_size,
                         const std::vector<DataIdentity>& train, int64_t step, FileSystem& files)
    : job_(job),
      micro_batch_size_(micro_batch_size),
      train_(train),
      step_(step),
      files_(files),
      path_(absl::StrCat(job.checkpoint_directory, "/", StepFolderName(step))),
      temporary_(absl::StrCat(job.checkpoint_directory, "/", TemporaryStepFolderName(step))) {}

absl::Status Publication::Begin() {
  RETURN_IF_ERROR(files_.CreateDirectories(job_.checkpoint_directory));
  RETURN_IF_ERROR(UndoReplacements(files_, job_.checkpoint_directory));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(job_.checkpoint_directory));
  for (const std::string& name : names) {
    if (!IsLeftover(name)) continue;
    RETURN_IF_ERROR(files_.RemoveAll(absl::StrCat(job_.checkpoint_directory, "/", name)));
  }
  RETURN_IF_ERROR(CheckReplaceable());
  return files_.CreateDirectories(temporary_);
}

absl::StatusOr<int64_t> Publication::Finish(int64_t updates,
                                            std::vector<ManifestFile> stage_files) {
  RETURN_IF_ERROR(VerifySizes(files_, temporary_, {step_, stage_files}));
  ASSIGN_OR_RETURN(const std::string index, MakeIndex(stage_files));
  Manifest manifest{step_, std::move(stage_files)};
  RETURN_IF_ERROR(WriteFile(kIndexName, index, manifest.files));
  RETURN_IF_ERROR(WriteSmallFiles(updates, manifest.files));
  RETURN_IF_ERROR(WriteFileAtomically(files_, absl::StrCat(temporary_, "/", kManifestName),
                                      PrintManifest(manifest)));
  RETURN_IF_ERROR(GiveName());
  return manifest.total_bytes();
}

void Publication::Discard() { files_.RemoveAll(temporary_).IgnoreError(); }

absl::StatusOr<std::string> Publication::MakeIndex(const std::vector<ManifestFile>& stage_files) {
  std::map<std::string, std::string> file_of_tensor;
  int64_t total_bytes = 0;
  for (const ManifestFile& file : stage_files) {
    if (!absl::StartsWith(file.name, "model-")) continue;
    ASSIGN_OR_RETURN(const SafetensorsFile header,
                     ReadSafetensorsHeader(files_, absl::StrCat(temporary_, "/", file.name)));
    for (const TensorEntry& tensor : header.tensors) {
      total_bytes += tensor.end - tensor.begin;
      if (!file_of_tensor.emplace(tensor.name, file.name).second) {
        return absl::InternalError(
            absl::StrCat("tensor ", tensor.name, " was written by two stages"));
      }
    }
  }
  for (const UnitSpec& unit : MakeUnits(job_.model)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (file_of_tensor.count(parameter.name) > 0) continue;
      return absl::InternalError(
          absl::StrCat("tensor ", parameter.name, " was written by no stage"));
    }
  }
  return PrintIndex(file_of_tensor, total_bytes);
}

absl::Status Publication::WriteSmallFiles(int64_t updates, std::vector<ManifestFile>& files) {
  RETURN_IF_ERROR(
      WriteFile(kModelConfigName, PrintModelConfig({job_.model, job_.precision}), files));
  RETURN_IF_ERROR(WriteFile(
      kTrainerStateName,
      PrintTrainerState(MakeTrainerState(job_, micro_batch_size_, train_, step_, updates)), files));
  if (!HasText(job_)) return absl::OkStatus();
  RETURN_IF_ERROR(WriteFile(kTokenizerName, PrintByteTokenizer(job_.model.vocab_size), files));
  return WriteFile(kTokenizerConfigName, PrintTokenizerConfig(job_.model.max_sequence_length),
                   files);
}

absl::Status Publication::WriteFile(const std::string& name, const std::string& text,
                                    std::vector<ManifestFile>& files) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                   files_.Create(absl::StrCat(temporary_, "/", name)));
  RETURN_IF_ERROR(file->Append(text));
  RETURN_IF_ERROR(file->Close());
  files.push_back({name, static_cast<int64_t>(text.size()), Sha256Hex(text)});
  return absl::OkStatus();
}

absl::Status Publication::CheckReplaceable() {
  if (!files_.Exists(path_)) return absl::OkStatus();
  const absl::StatusOr<Manifest> manifest = ReadManifest(files_, path_);
  absl::Status status = manifest.ok() ? VerifySizes(files_, path_, *manifest) : manifest.status();
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " is there and is no whole checkpoint, so it is not replaced (",
                   status.message(), "): move or remove it, or name another checkpoint.directory"));
}

absl::Status Publication::GiveName() {
  if (!files_.Exists(path_)) return files_.Rename(temporary_, path_);
  RETURN_IF_ERROR(CheckReplaceable());
  const std::string replaced =
      absl::StrCat(job_.checkpoint_directory, "/", kReplacedPrefix, StepFolderName(step_));
  RETURN_IF_ERROR(files_.RemoveAll(replaced));
  RETURN_IF_ERROR(files_.Rename(path_, replaced));
  absl::Status status = files_.Rename(temporary_, path_);
  if (!status.ok()) {
    files_.Rename(replaced, path_).IgnoreError();
    return status;
  }
  files_.RemoveAll(replaced).IgnoreError();
  return absl::OkStatus();
}

absl::Status Publication::PointLatest() {
  return WriteFileAtomically(files_, absl::StrCat(job_.checkpoint_directory, "/", kLatestName),
                             StepFolderName(step_) + "\n");
}

absl::Status Publication::Prune(int64_t keep) {
  if (keep <= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> checkpoints,
                   ListCheckpoints(files_, job_.checkpoint_directory));
  int64_t kept = 1;  // the one just written
  for (const CheckpointEntry& checkpoint : checkpoints) {
    if (checkpoint.manifest.step >= step_) continue;
    if (++kept > keep) RETURN_IF_ERROR(RemoveCheckpoint(checkpoint.path));
  }
  return absl::OkStatus();
}

absl::Status Publication::RemoveCheckpoint(const std::string& path) {
  // First the name, so that a removal that is interrupted leaves no half checkpoint under it.
  const std::string removed = absl::StrCat(job_.checkpoint_directory, "/", kRemovedPrefix,
                                           path.substr(path.find_last_of('/') + 1));
  RETURN_IF_ERROR(files_.Rename(path, removed));
  return files_.RemoveAll(removed);
}

}  // namespace esteira
