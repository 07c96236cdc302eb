#include "worker/communication/ucx/batch.h"

#include <algorithm>

namespace esteira {

Batch::Batch(FrameKind kind, std::span<const Transfer> transfers, absl::Duration timeout)
    : timeout_(timeout), deadline_(DeadlineAfter(timeout)), pending_(transfers.size()) {
  operations_.reserve(transfers.size());
  for (const Transfer& transfer : transfers) {
    operations_.push_back({.batch = this, .kind = kind, .transfer = transfer, .header = {}});
  }
}

bool Batch::HasInFlight() const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [](const Operation& operation) { return operation.in_flight; });
}

const Operation* Batch::FirstPending() const {
  const auto pending = std::find_if(operations_.begin(), operations_.end(),
                                    [](const Operation& operation) { return !operation.done; });
  return pending == operations_.end() ? nullptr : &*pending;
}

bool Batch::MarkDone(Operation& operation) {
  operation.done = true;
  return --pending_ == 0;
}

void Batch::Finish(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  finished_ = true;
  status_ = status;
  changed_.notify_one();
}

absl::Status Batch::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_; });
  return status_;
}

}  // namespace esteira
