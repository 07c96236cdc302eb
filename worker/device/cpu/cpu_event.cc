#include "worker/device/cpu/cpu_event.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace esteira {

uint64_t EventState::BeginGeneration() {
  std::lock_guard lock(mutex_);
  outstanding_.push_back(++newest_);
  return newest_;
}

void EventState::EndGeneration(uint64_t generation) {
  const absl::Time now = absl::Now();
  std::lock_guard lock(mutex_);
  std::erase(outstanding_, generation);
  if (generation > newest_reached_) {
    newest_reached_ = generation;
    time_ = now;
  }
  reached_.notify_all();
}

uint64_t EventState::newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

bool EventState::ReachedLocked(uint64_t generation) const {
  return std::find(outstanding_.begin(), outstanding_.end(), generation) == outstanding_.end();
}

bool EventState::Reached(uint64_t generation) const {
  std::lock_guard lock(mutex_);
  return ReachedLocked(generation);
}

void EventState::WaitFor(uint64_t generation) const {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return ReachedLocked(generation); });
}

absl::Time EventState::time() const {
  std::lock_guard lock(mutex_);
  return time_;
}

}  // namespace esteira
