#pragma once

#include <atomic>
#include <cstdint>

#include "worker/communication/deadline.h"

namespace esteira {

// Wakes a thread of one process from another process; lies in memory that both have mapped, zeros
// at first. One thread sleeps, any number ring.
//
// No message is slept through: whoever writes publishes with a sequentially consistent store and
// then calls RingIfAwaited; the sleeper calls Await, looks once more for what has been published,
// and only then sleeps. Of the two, one sees the other.
class Doorbell {
 public:
  void RingIfAwaited() {
    if (awaited_.load(std::memory_order_seq_cst) != 0) Ring();
  }
  void Ring();

  // From now on it is rung. What to give to Sleep.
  uint32_t Await() {
    const uint32_t rings = rings_.load(std::memory_order_acquire);
    awaited_.store(1, std::memory_order_seq_cst);
    return rings;
  }
  // Until it has been rung since `rings`, or the deadline.
  void Sleep(uint32_t rings, Deadline deadline);
  void StopAwaiting() { awaited_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> awaited_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace esteira
