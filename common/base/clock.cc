#include "common/base/clock.h"

#include "absl/time/clock.h"

namespace esteira {

absl::Time RealClock::Now() const { return absl::Now(); }

}  // namespace esteira
