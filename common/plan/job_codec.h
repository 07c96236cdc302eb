// Between the job file, the proto and JobSpec. Every fault of a job is found in one pass.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/job_spec.h"

namespace esteira::v1 {
class JobSpec;
}

namespace esteira {

// One thing wrong with a job: where ("training.steps"), what with which value, and what to do.
struct Fault {
  std::string field;
  std::string message;
};

// Job file (YAML) -> proto. Unknown fields (with the nearest known one), wrong types and repeated
// keys become faults; `overrides` are "training.steps=50" pairs that win over the file, and whose
// fields are noted in set_fields. Faults do not stop the reading.
v1::JobSpec ParseJobFile(absl::string_view yaml, const std::vector<std::string>& overrides,
                         std::vector<Fault>& faults);

// Proto -> JobSpec with defaults; adds every fault (ranges, names, contradictions, what is not
// built in) to `faults`.
JobSpec DecodeJob(const v1::JobSpec& proto, std::vector<Fault>& faults);

// InvalidArgument with one line a fault, or OK when there is none.
absl::Status FaultsStatus(const std::vector<Fault>& faults);

}  // namespace esteira
