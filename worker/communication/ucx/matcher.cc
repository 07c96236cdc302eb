#include "worker/communication/ucx/matcher.h"

#include <utility>

namespace esteira {
namespace {

template <typename Key, typename Value>
std::optional<Value> TakeFirst(std::map<Key, std::deque<Value>>& queues, const Key& key) {
  const auto queue = queues.find(key);
  if (queue == queues.end()) return std::nullopt;
  Value first = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues.erase(queue);
  return first;
}

}  // namespace

Matcher::Key Matcher::KeyOf(const FrameHeader& header) {
  return {header.source, header.kind, header.tag.kind, header.tag.group, header.tag.index};
}

Matcher::Key Matcher::KeyOf(const Operation& receive) {
  const Tag& tag = receive.transfer.tag;
  return {receive.transfer.peer, receive.kind, tag.kind, tag.group, tag.index};
}

int64_t Matcher::Cost(const Arrival& arrival) {
  return static_cast<int64_t>(sizeof(Arrival) + arrival.bytes.size());
}

Operation* Matcher::TakeReceive(const FrameHeader& header) {
  return TakeFirst(receives_, KeyOf(header)).value_or(nullptr);
}

std::optional<Arrival> Matcher::TakeArrival(const Operation& receive) {
  std::optional<Arrival> arrival = TakeFirst(arrivals_, KeyOf(receive));
  if (arrival.has_value()) kept_bytes_ -= Cost(*arrival);
  return arrival;
}

void Matcher::Post(Operation& receive) { receives_[KeyOf(receive)].push_back(&receive); }

void Matcher::Keep(Arrival arrival) {
  kept_bytes_ += Cost(arrival);
  const Key key = KeyOf(arrival.header);
  arrivals_[key].push_back(std::move(arrival));
}

std::vector<void*> Matcher::Clear() {
  std::vector<void*> descriptors;
  for (const auto& [key, queue] : arrivals_) {
    for (const Arrival& arrival : queue) {
      if (arrival.rendezvous != nullptr) descriptors.push_back(arrival.rendezvous);
    }
  }
  receives_.clear();
  arrivals_.clear();
  kept_bytes_ = 0;
  return descriptors;
}

}  // namespace esteira
