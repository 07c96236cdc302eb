// Bytes between the ranks of one epoch, in host memory. Knows ranks, tags, spans, deadlines and
// abort, and not what the bytes mean. Addresses travel through the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace esteira {

// Separates messages between two ranks; equal tags arrive in the order in which they were sent.
struct Tag {
  uint32_t kind = 0;   // kCollectiveTag, or an op of the plan
  uint32_t group = 0;  // of a collective; unit of a point to point
  uint32_t index = 0;  // micro-batch, or step of an algorithm
  bool operator==(const Tag&) const = default;
};
inline constexpr uint32_t kCollectiveTag = 0x1000;

struct Transfer {
  enum class Direction : uint8_t { kSend, kReceive };
  Direction direction = Direction::kSend;
  int peer = 0;
  Tag tag;
  std::span<std::byte>
      bytes;  // read for a send, written for a receive; sizes on both sides must be equal
};

struct TransportCounters {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t messages_sent = 0;
  int64_t messages_dropped = 0;  // failed the header check: other job, epoch, rank or size
};

// One rank's end of a full mesh. Thread-safe: several threads may each be inside Run. A transfer to
// oneself is refused.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Starts all `transfers` at once (a group) and blocks until each is complete: a sent buffer may
  // be reused, a received one is filled. OK, or the first failure: DeadlineExceeded when `timeout`
  // passes, Unavailable when the peer is lost, InvalidArgument when sizes differ, Aborted after
  // Abort. After a failure the transport is aborted.
  virtual absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) = 0;
  // The same, for received messages of one size: `arrived(offset, count)` is called for ranges of
  // bytes that cover them one after the other, by one thread at a time, while what it has been
  // called for lies at the front of each received span; other bytes of the spans are undefined.
  // This one waits for whole messages; a transport that fetches them bit by bit reuses the front,
  // which then stays in the cache.
  using Arrived = std::function<void(size_t offset, size_t count)>;
  virtual absl::Status RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                                     const Arrived& arrived);
  // Fails every transfer, now and later, with `cause`. Any thread, any number of times; the first
  // cause stays.
  virtual void Abort(const absl::Status& cause) = 0;
  virtual TransportCounters counters() const = 0;

 protected:
  // `transfers` are complete, and none has arrived in segments.
  static void ArrivedWhole(std::span<const Transfer> transfers, const Arrived& arrived);
};

}  // namespace esteira
