#include "worker/communication/ucx/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/communication/ucx/crc32c.h"

namespace esteira {
namespace {

constexpr uint32_t kMagic = 0x33585545;  // "EUX3"

uint32_t Checksum(FrameHeader header) {
  header.crc = 0;
  return Crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace

void Seal(FrameHeader* header) { header->crc = Checksum(*header); }

FrameHeader MakeFrame(const RankIdentity& self, FrameKind kind, int destination, const Tag& tag,
                      uint64_t sequence, uint64_t length) {
  FrameHeader header;
  header.magic = kMagic;
  header.kind = kind;
  header.job_hash = self.job_hash;
  header.epoch = self.epoch;
  header.source = self.rank;
  header.destination = destination;
  header.tag = tag;
  header.sequence = sequence;
  header.length = length;
  Seal(&header);
  return header;
}

absl::StatusOr<FrameHeader> ReadFrame(const RankIdentity& self, std::span<const std::byte> bytes,
                                      uint64_t length) {
  FrameHeader header;
  if (bytes.size() != sizeof(header)) return absl::DataLossError("header of another size");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return absl::DataLossError("not a header");
  if (header.crc != Checksum(header)) return absl::DataLossError("header checksum does not match");
  if (header.length != length) return absl::DataLossError("another number of bytes than announced");
  if (header.job_hash != self.job_hash) return absl::AbortedError("of another job");
  if (header.epoch != self.epoch) {
    return absl::AbortedError(absl::StrCat("of epoch ", header.epoch, ", this is ", self.epoch));
  }
  if (header.destination != self.rank || header.source < 0 || header.source >= self.size ||
      header.source == self.rank) {
    return absl::AbortedError(
        absl::StrCat("from rank ", header.source, " for rank ", header.destination));
  }
  return header;
}

}  // namespace esteira
