#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "worker/communication/ucx/batch.h"
#include "worker/communication/ucx/frame.h"

namespace esteira {

// A message that came before its receive: its bytes, or UCX's descriptor of bytes that are still at
// the sender.
struct Arrival {
  FrameHeader header;
  std::vector<std::byte> bytes;
  void* rendezvous = nullptr;
};

// Brings messages and receives of one source, kind and tag together, in order. Single-threaded;
// knows no UCX.
class Matcher {
 public:
  // The receive that `header` belongs to, now taken; null: none is posted.
  Operation* TakeReceive(const FrameHeader& header);
  // The oldest message for `receive`, now taken.
  std::optional<Arrival> TakeArrival(const Operation& receive);
  void Post(Operation& receive);
  void Keep(Arrival arrival);

  // What kept messages hold in memory, about.
  int64_t kept_bytes() const { return kept_bytes_; }
  // Forgets everything; the rendezvous descriptors, to be released.
  std::vector<void*> Clear();

 private:
  using Key = std::tuple<int, FrameKind, uint32_t, uint32_t, uint32_t>;
  static Key KeyOf(const FrameHeader& header);
  static Key KeyOf(const Operation& receive);
  static int64_t Cost(const Arrival& arrival);

  std::map<Key, std::deque<Operation*>> receives_;
  std::map<Key, std::deque<Arrival>> arrivals_;
  int64_t kept_bytes_ = 0;
};

}  // namespace esteira
