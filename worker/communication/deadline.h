#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace esteira {

// A point on the steady clock, which no adjustment of the wall clock moves.
using Deadline = std::chrono::steady_clock::time_point;

// `timeout` from now; at most a year, so that an infinite duration cannot overflow.
inline Deadline DeadlineAfter(absl::Duration timeout) {
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded);
}

inline absl::Duration TimeLeft(Deadline deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

}  // namespace esteira
