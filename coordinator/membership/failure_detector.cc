#include "coordinator/membership/failure_detector.h"

#include "absl/strings/str_cat.h"

namespace esteira {

Assessment Assess(absl::Time now, absl::Time last_seen, bool connected, absl::Duration lease) {
  const absl::Duration silence = now - last_seen;
  if (silence < lease / 2) return {};
  const bool lost = silence >= lease;
  return {
      lost ? Health::kLost : Health::kSuspect,
      absl::StrCat("nothing heard for ",
                   absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(1))),
                   lost ? " (lease " : " of a lease of ", absl::FormatDuration(lease),
                   lost ? ")" : "", connected ? ", its stream is open" : ", its stream is closed")};
}

}  // namespace esteira
