// The header in front of every message between two ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/communication/rank_identity.h"
#include "worker/communication/transport.h"

namespace esteira {

// The number under which UCX delivers our messages.
inline constexpr unsigned kActiveMessage = 1;

enum class FrameKind : uint32_t {
  kHello = 1,  // the first message to a peer: the mesh stands when one has come from each
  kData,
  kGoodbye,  // the last message of a rank that leaves in order
  kAbort,    // its bytes are the reason; tag.index is the rank where it began
};

// Sent as it lies in memory: all ranks of a job run the same build on little-endian machines. No
// padding.
struct FrameHeader {
  uint32_t magic = 0;
  FrameKind kind = FrameKind::kData;
  uint64_t job_hash = 0;
  int64_t epoch = 0;
  int32_t source = 0;
  int32_t destination = 0;
  Tag tag;
  uint32_t crc = 0;       // of the header with 0 in this place
  uint64_t sequence = 0;  // of the messages from source to destination
  uint64_t length = 0;    // of the bytes that follow
};
static_assert(sizeof(FrameHeader) == 64);

// A header from this rank, with its checksum.
FrameHeader MakeFrame(const RankIdentity& self, FrameKind kind, int destination, const Tag& tag,
                      uint64_t sequence, uint64_t length);
void Seal(FrameHeader* header);

// The header in `bytes`, followed by `length` bytes of data. DataLoss: damaged; Aborted: of another
// job or epoch, or for another rank. Nothing of the message may be used unless this is OK.
absl::StatusOr<FrameHeader> ReadFrame(const RankIdentity& self, std::span<const std::byte> bytes,
                                      uint64_t length);

}  // namespace esteira
