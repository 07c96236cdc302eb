#include "common/plan/job_codec_faults.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/plan/job_codec.h"

namespace esteira {

bool IsWithin(absl::string_view field, absl::string_view path) {
  return absl::ConsumePrefix(&field, path) &&
         (field.empty() || field.front() == '.' || field.front() == '[');
}

absl::Status FaultsStatus(const std::vector<Fault>& faults) {
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrJoin(faults, "\n", [](std::string* out, const Fault& fault) {
        absl::StrAppend(out, fault.field, ": ", fault.message);
      }));
}

}  // namespace esteira
