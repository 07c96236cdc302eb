#include <bit>

#include "worker/communication/algorithms.h"

namespace esteira {

Transfer Round::Send(int position, std::span<std::byte> bytes) const {
  return {Transfer::Direction::kSend, members_[static_cast<size_t>(position)], tag_, bytes};
}

Transfer Round::Receive(int position, std::span<std::byte> bytes) const {
  return {Transfer::Direction::kReceive, members_[static_cast<size_t>(position)], tag_, bytes};
}

absl::Status Round::Run(std::span<const Transfer> transfers) const {
  return transport_.Run(transfers, TimeLeft(deadline_));
}

absl::Status Round::RunInSegments(std::span<const Transfer> transfers,
                                  const Transport::Arrived& arrived) const {
  return transport_.RunInSegments(transfers, TimeLeft(deadline_), arrived);
}

template <typename Element>
void AddTo(std::span<Element> sum, std::span<const Element> x) {
  Element* __restrict to = sum.data();
  const Element* __restrict from = x.data();
  const size_t size = sum.size();
  // A constant inner trip count is what the compiler needs to use vector instructions at -O2.
  constexpr size_t kLanes = 16;
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) to[i + lane] += from[i + lane];
  }
  for (; i < size; ++i) to[i] += from[i];
}

void AddBf16To(std::span<float> sum, std::span<const uint16_t> x) {
  float* __restrict to = sum.data();
  const uint16_t* __restrict from = x.data();
  const size_t size = sum.size();
  constexpr size_t kLanes = 16;
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      to[i + lane] += std::bit_cast<float>(static_cast<uint32_t>(from[i + lane]) << 16);
    }
  }
  for (; i < size; ++i) to[i] += std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

template void AddTo<float>(std::span<float> sum, std::span<const float> x);
template void AddTo<int64_t>(std::span<int64_t> sum, std::span<const int64_t> x);

}  // namespace esteira
