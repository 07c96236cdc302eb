// Operations among a group of ranks, on a stream. Knows ranks, spans and deadlines, and not what
// the bytes mean.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/communication/transport.h"
#include "worker/device/device.h"

namespace esteira {

// kDirect: all exchange at once. kRing: with the neighbours only; a broadcast is a chain. kTree: a
// broadcast is a binomial tree; pieces, which a tree cannot move any cheaper, are exchanged
// directly. A barrier is a dissemination in all of them.
enum class Algorithm { kAuto, kDirect, kRing, kTree };

// What a message costs: chooses the algorithm under kAuto where README.md says so. Constants of the
// job; neither they nor what is measured change the order of additions.
struct LinkModel {
  double latency_seconds = 20e-6;
  double bytes_per_second = 2e9;
};

// A buffer of bf16 that is to be summed in fp32.
struct Bf16Reduction {
  std::span<uint16_t> contribution;  // size() equal pieces; read
  std::span<float> sums;             // as long as a piece; written
};

// All operations are asynchronous on `stream`, must be called in the same order by every member of
// the group, and stick their failure to the stream. Ranks inside a group are positions in
// `members`. Calls from one thread at a time; object and buffers outlive the work on the stream.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int position() const = 0;  // of this rank in the group
  virtual int size() const = 0;

  // buffer is size() equal pieces; this rank's piece, at its position, is read, the others are
  // written.
  virtual void AllGather(std::span<std::byte> buffer, Stream& stream) = 0;
  // `buffer` is size() equal pieces of fp32; its piece at this rank's position becomes the sum over
  // the group. The other pieces are left undefined. For one size and group, the order of additions
  // is always the same.
  virtual void ReduceScatter(std::span<float> buffer, std::span<std::byte> scratch,
                             Stream& stream) = 0;
  // The same of integers, whose sum no order changes. It must not wrap.
  virtual void ReduceScatter(std::span<int64_t> buffer, std::span<std::byte> scratch,
                             Stream& stream) = 0;
  // Of several buffers in one round of messages: what the operations above do to each, to the bit.
  // `scratch` is for all of them together.
  virtual void AllGatherEach(std::vector<std::span<std::byte>> buffers, Stream& stream) = 0;
  virtual void ReduceScatterEach(std::vector<std::span<float>> buffers,
                                 std::span<std::byte> scratch, Stream& stream) = 0;
  virtual void ReduceScatterEach(std::vector<std::span<int64_t>> buffers,
                                 std::span<std::byte> scratch, Stream& stream) = 0;
  // Sums of bf16 in fp32, each buffer as if alone, in one round of messages: `sums` becomes
  // ((c[0] + c[1]) + ...) of this rank's pieces of all members' contributions, by position, whoever
  // owns the piece. `scratch`: ScratchBytes of the contributions' bytes.
  virtual void ReduceScatterBf16Each(std::vector<Bf16Reduction> reductions,
                                     std::span<std::byte> scratch, Stream& stream) = 0;
  // ReduceScatter followed by AllGather: the same bits on every rank, and the same bits as
  // ReduceScatter's pieces.
  virtual void AllReduce(std::span<float> buffer, std::span<std::byte> scratch, Stream& stream) = 0;
  virtual void Broadcast(std::span<std::byte> buffer, int root, Stream& stream) = 0;
  virtual void Barrier(Stream& stream) = 0;

  // Bytes of scratch that the reductions above need for a buffer of `bytes` in all.
  virtual int64_t ScratchBytes(int64_t bytes) const = 0;
};

struct CollectivesOptions {
  uint32_t group_id = 0;  // equal on all members, different for each group of an epoch
  Algorithm algorithm = Algorithm::kAuto;
  LinkModel link{};
  absl::Duration timeout = absl::Minutes(5);
};

// Collectives over any Transport, among `members` (ranks, ascending, this rank among them).
// `transport` outlives it.
std::unique_ptr<Collectives> MakeCollectives(Transport& transport, std::vector<int> members,
                                             const CollectivesOptions& options);

// Which algorithm kAuto takes for a buffer of `bytes` in all. Pure.
Algorithm ChooseAlgorithm(const LinkModel& link, int64_t bytes, int ranks);
Algorithm ChooseBroadcastAlgorithm(const LinkModel& link, int64_t bytes, int ranks);

// Enqueues one group of point-to-point transfers on `stream`.
void Exchange(Transport& transport, std::vector<Transfer> transfers, absl::Duration timeout,
              Stream& stream);

}  // namespace esteira
