#include "client/job_file.h"

#include <filesystem>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/plan/job_codec.h"
#include "coordinator/planner/schedules/csv.h"

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

constexpr int64_t kMaxScheduleBytes = int64_t{32} << 20;  // half of what a message may have

// Reads the schedule `csv:PATH`; returns what is wrong, or nothing.
std::string ReadSchedule(const std::filesystem::path& folder, v1::ParallelismSpec& parallelism) {
  std::string path(absl::StripPrefix(parallelism.pipeline_schedule(), kCsvPrefix));
  if (path.empty()) return "names no file; write csv:PATH";
  MakeAbsolute(folder, path);
  parallelism.set_pipeline_schedule(absl::StrCat(kCsvPrefix, path));
  RealFileSystem files;
  const absl::StatusOr<int64_t> size = files.Size(path);
  if (size.ok() && *size > kMaxScheduleBytes) {
    return absl::StrCat(path, " has ", *size, " bytes, and at most ", kMaxScheduleBytes,
                        " are read; is it a schedule?");
  }
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok()) return std::string(text.status().message());
  const auto read = ReadCsvSchedule(*text);
  if (std::holds_alternative<CsvFault>(read)) {
    return absl::StrCat(path, " is no schedule that can run\n",
                        MarkFault(*text, std::get<CsvFault>(read)));
  }
  parallelism.set_pipeline_schedule_csv(*text);
  return "";
}

}  // namespace

absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& overrides,
                                    const std::string& schedule) {
  RealFileSystem files;
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok()) {
    // A missing file is a usage error here, not an unknown job.
    return absl::InvalidArgumentError(absl::StrCat("the job file: ", text.status().message()));
  }
  std::vector<Fault> faults;
  JobFile job;
  job.proto = ParseJobFile(*text, overrides, faults);
  std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  MakePathsAbsolute(folder, job.proto);
  if (!schedule.empty()) {
    job.proto.mutable_parallelism()->set_pipeline_schedule(schedule);
    folder = std::filesystem::current_path();
  }
  if (absl::StartsWith(job.proto.parallelism().pipeline_schedule(), kCsvPrefix)) {
    std::string fault = ReadSchedule(folder, *job.proto.mutable_parallelism());
    if (!fault.empty()) {
      faults.push_back({"parallelism.pipeline_schedule", std::move(fault)});
      job.proto.mutable_parallelism()->clear_pipeline_schedule();  // one fault is enough
    }
  }
  job.spec = DecodeJob(job.proto, faults);
  RETURN_IF_ERROR(FaultsStatus(faults));
  return job;
}

}  // namespace esteira
