#include "worker/communication/host/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace esteira {
namespace {

// Not private: the word is found by the memory that it lies in, whoever has mapped it.
void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* until) {
  syscall(SYS_futex, &word, operation, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void Doorbell::Ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  Futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::Sleep(uint32_t rings, Deadline deadline) {
  // The steady clock is CLOCK_MONOTONIC, which is what the kernel measures this by.
  const auto since_boot = std::max(deadline.time_since_epoch(), Deadline::duration::zero());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
  const timespec until{.tv_sec = seconds.count(), .tv_nsec = (since_boot - seconds).count()};
  Futex(rings_, FUTEX_WAIT_BITSET, rings, &until);
}

}  // namespace esteira
