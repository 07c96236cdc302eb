#include "coordinator/job/restore_steps.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int kPage = 256;

absl::Status RestoreJob(JobStore& store, DataDirectory& directory, const Job& job) {
  ASSIGN_OR_RETURN(int64_t last, directory.LastStep(job.id));
  if (last == 0 && IsTerminal(job.state)) return absl::OkStatus();
  while (last < job.step) {
    ASSIGN_OR_RETURN(const std::vector<StepRecord> records,
                     store.ListSteps(job.id, last + 1, kPage));
    if (records.empty()) return absl::OkStatus();
    for (const StepRecord& record : records) {
      RETURN_IF_ERROR(directory.AppendStep(job.id, record));
    }
    last = records.back().step;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreStepLines(JobStore& store, DataDirectory& directory) {
  absl::Status first_error;
  std::string token;
  do {
    ASSIGN_OR_RETURN(const JobPage page, store.List(kPage, token));
    for (const Job& job : page.jobs) {
      if (job.step > 0) first_error.Update(RestoreJob(store, directory, job));
    }
    token = page.next_page_token;
  } while (!token.empty());
  return first_error;
}

}  // namespace esteira
