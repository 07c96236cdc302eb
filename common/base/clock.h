#pragma once

#include "absl/time/time.h"

namespace esteira {

// Where the time comes from. Everything that decides by time takes one, so that tests set it by
// hand.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// The machine's clock. Thread-safe.
class RealClock : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace esteira
