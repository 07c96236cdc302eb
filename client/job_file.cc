#include "client/job_file.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/plan/job_codec.h"

namespace esteira {
namespace {

void MakeAbsolute(const std::filesystem::path& folder, std::string& path) {
  if (!path.empty()) path = (folder / path).lexically_normal().string();
}

void MakePathsAbsolute(const std::filesystem::path& folder, v1::JobSpec& job) {
  if (job.has_data()) {
    for (v1::DataSource& source : *job.mutable_data()->mutable_train())
      MakeAbsolute(folder, *source.mutable_path());
    for (v1::DataSource& source : *job.mutable_data()->mutable_validation())
      MakeAbsolute(folder, *source.mutable_path());
  }
  if (job.has_checkpoint()) MakeAbsolute(folder, *job.mutable_checkpoint()->mutable_directory());
}

}  // namespace

absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& overrides) {
  RealFileSystem files;
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok()) {
    // A missing file is a usage error here, not an unknown job.
    return absl::InvalidArgumentError(absl::StrCat("the job file: ", text.status().message()));
  }
  std::vector<Fault> faults;
  JobFile job;
  job.proto = ParseJobFile(*text, overrides, faults);
  MakePathsAbsolute(std::filesystem::absolute(path).parent_path(), job.proto);
  job.spec = DecodeJob(job.proto, faults);
  RETURN_IF_ERROR(FaultsStatus(faults));
  return job;
}

}  // namespace esteira
