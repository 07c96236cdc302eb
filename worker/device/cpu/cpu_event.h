#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "worker/device/device.h"

namespace esteira {

// The state of an event, shared by the event and by the streams that still have to reach it, so
// that an event may be destroyed at any time. Each Record is a generation of its own: a waiter
// waits for the generation that was the newest when it began to wait, and later generations, on
// whatever stream, neither release nor delay it. Thread-safe.
class EventState {
 public:
  uint64_t BeginGeneration();               // called by Record; returns the new generation
  void EndGeneration(uint64_t generation);  // called by the stream that reached it
  uint64_t newest() const;                  // 0: never recorded
  bool Reached(uint64_t generation) const;
  void WaitFor(uint64_t generation) const;
  absl::Time time() const;

 private:
  bool ReachedLocked(uint64_t generation) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  uint64_t newest_ = 0;
  uint64_t newest_reached_ = 0;
  std::vector<uint64_t> outstanding_;  // begun and not ended; nearly always none or one
  absl::Time time_ = absl::InfinitePast();
};

class CpuEvent : public Event {
 public:
  CpuEvent() : state_(std::make_shared<EventState>()) {}
  bool Query() const override { return state_->Reached(state_->newest()); }
  void Wait() const override { state_->WaitFor(state_->newest()); }
  absl::Time time() const override { return state_->time(); }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

}  // namespace esteira
