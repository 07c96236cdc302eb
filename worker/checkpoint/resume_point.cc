#include "worker/checkpoint/resume_point.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/agreement.h"
#include "worker/checkpoint/publication.h"

namespace esteira {
namespace {

// A small file, read whole, with its digest checked on the bytes that are used.
absl::StatusOr<std::string> ReadChecked(FileSystem& files, const std::string& folder,
                                        const Manifest& manifest, const std::string& name) {
  const auto entry = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const ManifestFile& file) { return file.name == name; });
  if (entry == manifest.files.end()) {
    return absl::DataLossError(absl::StrCat("its manifest names no ", name));
  }
  ASSIGN_OR_RETURN(std::string text, files.Read(absl::StrCat(folder, "/", name)));
  if (Sha256Hex(text) != entry->sha256) {
    return absl::DataLossError(absl::StrCat(name, " has another digest: its bytes have changed"));
  }
  return text;
}

absl::StatusOr<RunDescription> ReadRun(FileSystem& files, const std::string& folder,
                                       const Manifest& manifest) {
  RunDescription run;
  ASSIGN_OR_RETURN(const std::string config,
                   ReadChecked(files, folder, manifest, kModelConfigName));
  ASSIGN_OR_RETURN(run.config, ParseModelConfig(config));
  ASSIGN_OR_RETURN(const std::string state,
                   ReadChecked(files, folder, manifest, kTrainerStateName));
  ASSIGN_OR_RETURN(run.state, ParseTrainerState(state));
  if (run.state.step != manifest.step) {
    return absl::DataLossError(absl::StrCat(kTrainerStateName, " is of step ", run.state.step, ", ",
                                            kManifestName, " of step ", manifest.step));
  }
  return run;
}

// One rank's share of the files of one checkpoint, dealt by size; and what every rank reads.
absl::StatusOr<RunDescription> VerifyShare(FileSystem& files, const std::string& folder, int rank,
                                           int num_ranks) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, folder));
  ASSIGN_OR_RETURN(RunDescription run, ReadRun(files, folder, manifest));
  std::stable_sort(manifest.files.begin(), manifest.files.end(),
                   [](const ManifestFile& a, const ManifestFile& b) { return a.bytes > b.bytes; });
  std::vector<std::string> faults;
  for (size_t i = static_cast<size_t>(rank); i < manifest.files.size();
       i += static_cast<size_t>(num_ranks)) {
    std::string fault = DigestFault(files, folder, manifest.files[i]);
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  if (faults.empty()) return run;
  return absl::DataLossError(absl::StrJoin(faults, "; "));
}

// All faults that any rank has found, each once.
absl::Status AllFailures(const std::vector<RankOutcome>& outcomes) {
  std::vector<std::string> texts;
  for (const RankOutcome& outcome : outcomes) {
    if (!outcome.status.ok()) texts.emplace_back(outcome.status.message());
  }
  if (texts.empty()) return absl::OkStatus();
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return absl::DataLossError(absl::StrJoin(texts, "; "));
}

struct Skipped {
  std::string folder;
  std::string why;
};

std::string NameOf(const std::string& folder) {
  return folder.substr(folder.find_last_of('/') + 1);
}

std::string Describe(const Skipped& skipped) {
  return absl::StrCat(NameOf(skipped.folder), ": ", skipped.why);
}

// Moves a damaged checkpoint out of the way. Returns what became of it.
std::string SetAside(FileSystem& files, const std::string& directory, const Skipped& skipped) {
  std::string name = "damaged-" + NameOf(skipped.folder);
  while (files.Exists(absl::StrCat(directory, "/", name))) name += "+";
  const absl::Status moved = files.Rename(skipped.folder, absl::StrCat(directory, "/", name));
  if (!moved.ok()) return absl::StrCat("cannot be set aside: ", moved.message());
  return absl::StrCat("now ", name);
}

// Rank 0 leads through the candidates, and the others follow.
class Search {
 public:
  Search(FileSystem& files, Transport& transport, absl::Duration timeout)
      : files_(files), transport_(transport), timeout_(timeout) {}

  struct Found {
    std::string folder;  // empty: there is no checkpoint at all
    RunDescription run;
    std::vector<Skipped> skipped;
  };

  absl::StatusOr<Found> Run(const std::string& directory) {
    absl::StatusOr<std::vector<StepFolder>> folders = std::vector<StepFolder>();
    if (transport_.rank() == 0) folders = List(directory);
    Found found;
    for (size_t next = 0;; ++next) {
      ASSIGN_OR_RETURN(found.folder,
                       BroadcastText(transport_, Name(folders, directory, next), timeout_));
      if (found.folder.empty()) return found;
      absl::StatusOr<RunDescription> run =
          VerifyShare(files_, found.folder, transport_.rank(), transport_.size());
      ASSIGN_OR_RETURN(const std::vector<RankOutcome> outcomes,
                       GatherOutcomes(transport_, {run.status(), {}}, timeout_));
      const absl::Status whole = AllFailures(outcomes);
      if (transport_.rank() == 0 && !whole.ok()) Skip(found.folder, whole);
      ASSIGN_OR_RETURN(const std::string verdict,
                       BroadcastText(transport_, std::string(whole.ok() ? "" : "skip"), timeout_));
      if (!verdict.empty()) continue;
      found.run = *std::move(run);
      found.skipped = std::move(skipped_);
      return found;
    }
  }

 private:
  absl::StatusOr<std::vector<StepFolder>> List(const std::string& directory) {
    RETURN_IF_ERROR(UndoReplacements(files_, directory));
    return ListStepFolders(files_, directory);
  }

  // The next folder whose sizes are right, or empty when there never was one.
  absl::StatusOr<std::string> Name(const absl::StatusOr<std::vector<StepFolder>>& folders,
                                   const std::string& directory, size_t next) {
    RETURN_IF_ERROR(folders.status());
    for (size_t i = next + num_broken_; i < folders->size(); ++i, ++num_broken_) {
      const StepFolder& folder = (*folders)[i];
      if (folder.manifest.ok()) return folder.path;
      Skip(folder.path, folder.manifest.status());
    }
    if (folders->empty() || transport_.rank() != 0) return std::string();
    return absl::DataLossError(
        absl::StrCat("checkpoint.resume is auto, and no checkpoint in ", directory,
                     " is whole, so nothing was started; put one back, or set "
                     "checkpoint.resume=never or another "
                     "directory to start anew: ",
                     absl::StrJoin(skipped_, "; ", [](std::string* out, const Skipped& skipped) {
                       out->append(Describe(skipped));
                     })));
  }

  void Skip(const std::string& folder, const absl::Status& why) {
    skipped_.push_back({folder, std::string(why.message())});
  }

  FileSystem& files_;
  Transport& transport_;
  absl::Duration timeout_;
  size_t num_broken_ = 0;
  std::vector<Skipped> skipped_;
};

}  // namespace

absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const JobSpec& job,
                                                           int64_t micro_batch_size,
                                                           const std::vector<DataIdentity>& train,
                                                           FileSystem& files, Transport& transport,
                                                           absl::Duration timeout) {
  ASSIGN_OR_RETURN(Search::Found found,
                   Search(files, transport, timeout).Run(job.checkpoint_directory));
  if (found.folder.empty()) return std::nullopt;
  absl::StatusOr<Continuation> continuation = ContinueRun(found.run, job, micro_batch_size, train);
  // A worker that sees other data than the rest must not go on alone.
  ASSIGN_OR_RETURN(const std::vector<RankOutcome> outcomes,
                   GatherOutcomes(transport, {continuation.status(), {}}, timeout));
  absl::Status verdict = FirstFailure(outcomes);
  if (!verdict.ok()) {
    verdict = absl::Status(verdict.code(), absl::StrCat("cannot continue from ", found.folder, ": ",
                                                        verdict.message()));
  }
  RETURN_IF_ERROR(BroadcastStatus(transport, verdict, timeout));
  ResumePoint point{
      std::move(found.folder), std::move(found.run.state), {}, *std::move(continuation)};
  for (const Skipped& skipped : found.skipped) {
    point.skipped.push_back(absl::StrCat(Describe(skipped), " (",
                                         SetAside(files, job.checkpoint_directory, skipped), ")"));
  }
  return point;
}

std::string DescribeResume(const ResumePoint& point) {
  std::string text =
      absl::StrCat("continues from step ", point.state.step, " (", point.folder, ")");
  if (!point.continuation.changed.empty()) {
    absl::StrAppend(&text,
                    "; changed on resume: ", absl::StrJoin(point.continuation.changed, ", "));
  }
  if (!point.continuation.kept.empty()) {
    absl::StrAppend(&text, "; as saved: ", absl::StrJoin(point.continuation.kept, ", "));
  }
  if (!point.skipped.empty()) {
    absl::StrAppend(&text, "; skipped because damaged: ", absl::StrJoin(point.skipped, ", "));
  }
  return text;
}

}  // namespace esteira
