#include "absl/strings/str_cat.h"
#include "common/plan/machine.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {

absl::Status CheckDeadlock(const Context& context, const std::vector<Program>& programs,
                           bool train) {
  const DurationFunction none = [](const Program&, const Instruction&) { return 0.0; };
  absl::Status status = RunMachine(context.plan, programs, none).status();
  if (status.ok() || train) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (evaluate programs)"));
}

}  // namespace esteira::validate
