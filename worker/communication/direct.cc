// Everyone exchanges with everyone at once: one latency, many flows.
#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"

namespace esteira {

// Messages between two members have one tag and hence the order of the buffers.
absl::Status DirectAllGather(const Round& round, std::span<const std::span<std::byte>> buffers) {
  const int n = round.size();
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < n; ++distance) {
    const int from = round.Neighbour(-distance);
    for (std::span<std::byte> buffer : buffers) {
      transfers.push_back(round.Receive(from, Piece(buffer, from, n)));
    }
  }
  for (int distance = 1; distance < n; ++distance) {
    const int to = round.Neighbour(distance);
    for (std::span<std::byte> buffer : buffers) {
      transfers.push_back(round.Send(to, Piece(buffer, round.position(), n)));
    }
  }
  return round.Run(transfers);
}

namespace {

// received[k] begins with what member position + 1 + k has of `own`: in the order of the additions.
// Overwrites them.
template <typename Element>
void AddUp(std::span<Element> own, std::span<const std::span<Element>> received) {
  constexpr size_t kBlock = 4096;  // stays in the first-level cache while all members are added up
  for (size_t begin = 0; begin < own.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, own.size() - begin);
    const std::span<Element> sum = received.front().subspan(begin, count);
    for (size_t k = 1; k < received.size(); ++k) {
      AddTo<Element>(sum, received[k].subspan(begin, count));
    }
    AddTo<Element>(own.subspan(begin, count), sum);
  }
}

}  // namespace

template <typename Element>
absl::Status DirectReduceScatter(const Round& round, std::span<const std::span<Element>> buffers,
                                 std::span<Element> scratch) {
  const int n = round.size();
  std::vector<std::vector<std::span<Element>>> received;  // by buffer, by distance - 1
  for (std::span<Element> buffer : buffers) {
    const size_t piece = buffer.size() / static_cast<size_t>(n);
    std::vector<std::span<Element>>& pieces = received.emplace_back();
    for (int distance = 1; distance < n; ++distance) {
      pieces.push_back(scratch.first(piece));
      scratch = scratch.subspan(piece);
    }
  }
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < n; ++distance) {
    const auto pieces = static_cast<size_t>(distance - 1);
    for (size_t b = 0; b < buffers.size(); ++b) {
      transfers.push_back(
          round.Receive(round.Neighbour(distance), std::as_writable_bytes(received[b][pieces])));
    }
  }
  for (int distance = 1; distance < n; ++distance) {
    const int to = round.Neighbour(-distance);
    for (std::span<Element> buffer : buffers) {
      transfers.push_back(round.Send(to, std::as_writable_bytes(Piece(buffer, to, n))));
    }
  }
  if (buffers.size() == 1) {
    const std::span<Element> own = Piece(buffers[0], round.position(), n);
    return round.RunInSegments(transfers, [&](size_t offset, size_t count) {
      AddUp<Element>(own.subspan(offset / sizeof(Element), count / sizeof(Element)), received[0]);
    });
  }
  RETURN_IF_ERROR(round.Run(transfers));
  for (size_t b = 0; b < buffers.size(); ++b) {
    AddUp<Element>(Piece(buffers[b], round.position(), n), received[b]);
  }
  return absl::OkStatus();
}

template absl::Status DirectReduceScatter<float>(const Round& round,
                                                 std::span<const std::span<float>> buffers,
                                                 std::span<float> scratch);
template absl::Status DirectReduceScatter<int64_t>(const Round& round,
                                                   std::span<const std::span<int64_t>> buffers,
                                                   std::span<int64_t> scratch);

namespace {

// pieces[k] begins with what member k has of `sums`.
void AddUpBf16(std::span<float> sums, std::span<const std::span<uint16_t>> pieces) {
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < sums.size(); begin += kBlock) {
    const std::span<float> sum = sums.subspan(begin, std::min(kBlock, sums.size() - begin));
    std::fill(sum.begin(), sum.end(), -0.0F);  // -0 + x is x, also for -0
    for (std::span<uint16_t> piece : pieces) AddBf16To(sum, piece.subspan(begin, sum.size()));
  }
}

}  // namespace

// Partial sums never travel, so nothing is rounded twice, and the order need not follow the owner.
absl::Status DirectReduceScatterBf16(const Round& round, std::span<const Bf16Reduction> reductions,
                                     std::span<uint16_t> scratch) {
  const int n = round.size();
  std::vector<std::vector<std::span<uint16_t>>> pieces;  // by buffer, by member
  std::vector<Transfer> transfers;
  for (const Bf16Reduction& reduction : reductions) {
    std::vector<std::span<uint16_t>>& of_buffer = pieces.emplace_back();
    for (int member = 0; member < n; ++member) {
      if (member == round.position()) {
        of_buffer.push_back(Piece(reduction.contribution, member, n));
        continue;
      }
      of_buffer.push_back(scratch.first(reduction.sums.size()));
      scratch = scratch.subspan(reduction.sums.size());
      transfers.push_back(round.Receive(member, std::as_writable_bytes(of_buffer.back())));
    }
  }
  for (const Bf16Reduction& reduction : reductions) {
    for (int distance = 1; distance < n; ++distance) {
      const int to = round.Neighbour(-distance);
      transfers.push_back(
          round.Send(to, std::as_writable_bytes(Piece(reduction.contribution, to, n))));
    }
  }
  if (reductions.size() == 1 && n > 1) {
    std::span<uint16_t>& own = pieces[0][static_cast<size_t>(round.position())];
    return round.RunInSegments(transfers, [&, whole = own](size_t offset, size_t count) {
      own = whole.subspan(offset / sizeof(uint16_t));
      AddUpBf16(reductions[0].sums.subspan(offset / sizeof(uint16_t), count / sizeof(uint16_t)),
                pieces[0]);
    });
  }
  RETURN_IF_ERROR(round.Run(transfers));
  for (size_t b = 0; b < reductions.size(); ++b) AddUpBf16(reductions[b].sums, pieces[b]);
  return absl::OkStatus();
}

absl::Status DirectBroadcast(const Round& round, std::span<std::byte> buffer, int root) {
  std::vector<Transfer> transfers;
  if (round.position() == root) {
    for (int distance = 1; distance < round.size(); ++distance) {
      transfers.push_back(round.Send(round.Neighbour(distance), buffer));
    }
  } else {
    transfers.push_back(round.Receive(root, buffer));
  }
  return round.Run(transfers);
}

}  // namespace esteira
