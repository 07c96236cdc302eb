#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "common/plan/instruction.h"
#include "worker/communication/transport.h"
#include "worker/device/device.h"

namespace esteira {

// The FIFO queues of a rank, one stream each, and their common fate: when one fails, the transport
// is aborted with that first cause, so that no rank waits for this one, and the others skip what is
// left. Owns the streams; device and transport outlive it. Issued to by one thread.
class Queues {
 public:
  Queues(Device& device, Transport& transport);

  Stream& operator[](Queue queue) const { return *streams_[static_cast<size_t>(queue)]; }
  // Enqueues a check that no queue has failed; work behind it is skipped when one has.
  void Guard(Queue queue);
  // Ends all queues with a failure that was found elsewhere; returns the first cause.
  absl::Status Fail(const absl::Status& cause);
  // Blocks until all queues are empty; the first cause of failure, if any.
  absl::Status Synchronize();

 private:
  // The first cause, as far as it is known. Any thread.
  absl::Status FirstFailure();

  Transport& transport_;
  std::mutex mutex_;
  absl::Status cause_;  // guarded by mutex_
  std::array<std::unique_ptr<Stream>, kNumQueues> streams_;
};

}  // namespace esteira
