#pragma once

#include <mutex>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace esteira {

// A clock that stands still until a test moves it. Thread-safe.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::UnixEpoch() + absl::Hours(24)) : now_(now) {}

  absl::Time Now() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }
  void Advance(absl::Duration duration) {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ += duration;
  }
  void Set(absl::Time now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ = now;
  }

 private:
  mutable std::mutex mutex_;
  absl::Time now_;  // protected by mutex_
};

}  // namespace esteira
