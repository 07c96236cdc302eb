// When a worker counts as lost. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace esteira {

enum class Health { kAlive, kSuspect, kLost };

struct Assessment {
  Health health = Health::kAlive;
  std::string reason;  // empty when alive
};

// A worker is lost when nothing has been heard of it for a whole lease, and suspect after half of
// one: it keeps what it has, and gets nothing new. `connected`: its stream is open, which alone
// proves nothing about the process behind it.
Assessment Assess(absl::Time now, absl::Time last_seen, bool connected, absl::Duration lease);

}  // namespace esteira
