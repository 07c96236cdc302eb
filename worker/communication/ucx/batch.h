#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/communication/deadline.h"
#include "worker/communication/transport.h"
#include "worker/communication/ucx/frame.h"

namespace esteira {

class Batch;
class UcxMesh;

// Up to here a message is sent at once and may wait at the receiver; beyond, only when its receive
// is there.
inline constexpr size_t kEagerBytes = 64 << 10;

// One transfer on its way. `header` must stay where it is until the send is complete: UCX reads it
// from here.
struct Operation {
  Batch* batch = nullptr;
  UcxMesh* mesh = nullptr;  // that has started it
  FrameKind kind = FrameKind::kData;
  Transfer transfer;
  FrameHeader header;
  bool in_flight = false;  // UCX holds its buffer
  bool done = false;
};

// The transfers of one Run. The progress thread completes its operations; another thread waits.
// Everything but Wait belongs to the progress thread.
class Batch {
 public:
  Batch(FrameKind kind, std::span<const Transfer> transfers, absl::Duration timeout);
  Batch(const Batch&) = delete;

  std::vector<Operation>& operations() { return operations_; }
  const std::vector<Operation>& operations() const { return operations_; }
  Deadline deadline() const { return deadline_; }
  absl::Duration timeout() const { return timeout_; }
  bool HasInFlight() const;
  const Operation* FirstPending() const;  // null: all are done
  // True when it was the last.
  bool MarkDone(Operation& operation);
  void Finish(const absl::Status& status);

  // Blocks until Finish, from any one thread.
  absl::Status Wait();

 private:
  const absl::Duration timeout_;
  const Deadline deadline_;
  std::vector<Operation> operations_;
  size_t pending_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  absl::Status status_;
};

}  // namespace esteira
