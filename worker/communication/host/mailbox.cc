#include "worker/communication/host/mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr uint64_t kMagic = 0x31584f42'4c49414d;  // "MAILBOX1"
// Its size cannot change: memory that is mapped stays there whatever a peer does.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPageBytes = 64 << 10;  // a multiple of every page size

constexpr size_t Pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

constexpr size_t kHeadBytes = Pages(sizeof(MailboxHead));
constexpr size_t kLaneBytes = Pages(sizeof(Lane));

int64_t LaneOffset(int peer) {
  return static_cast<int64_t>(kHeadBytes) + static_cast<int64_t>(kLaneBytes) * peer;
}

}  // namespace

absl::StatusOr<SharedMapping> SharedMapping::Map(int descriptor, int64_t offset, size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, offset);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "mapping a mailbox");
  SharedMapping mapping;
  mapping.data_ = data;
  mapping.bytes_ = bytes;
  return mapping;
}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<std::unique_ptr<Mailbox>> Mailbox::Make(const RankIdentity& self) {
  std::unique_ptr<Mailbox> mailbox(new Mailbox());
  mailbox->descriptor_ = memfd_create("esteira-mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (mailbox->descriptor_ < 0) return absl::ErrnoToStatus(errno, "making a mailbox");
  if (ftruncate(mailbox->descriptor_, LaneOffset(self.size)) != 0 ||
      fcntl(mailbox->descriptor_, F_ADD_SEALS, kSeals) != 0) {
    return absl::ErrnoToStatus(errno, "giving a mailbox its size");
  }
  ASSIGN_OR_RETURN(mailbox->head_, SharedMapping::Map(mailbox->descriptor_, 0, kHeadBytes));
  auto& head = mailbox->head_.As<MailboxHead>();
  head.magic = kMagic;
  head.lane_bytes = kLaneBytes;
  head.word = OwnMemoryProof().value;
  head.owner = self;
  if (sched_getaffinity(0, sizeof(head.processors), &head.processors) != 0) {
    return absl::ErrnoToStatus(errno, "asking which processors may be used");
  }
  return mailbox;
}

Mailbox::~Mailbox() { Hide(); }

MailboxAddress Mailbox::address() const { return {OwnMemoryProof(), descriptor_}; }

absl::StatusOr<Lane*> Mailbox::AddLane(int peer) {
  // Taken now, so that memory cannot be found to be short while a message is written.
  if (fallocate(descriptor_, 0, LaneOffset(peer), kLaneBytes) != 0) {
    return absl::ErrnoToStatus(errno, "memory for a mailbox");
  }
  ASSIGN_OR_RETURN(SharedMapping lane,
                   SharedMapping::Map(descriptor_, LaneOffset(peer), kLaneBytes));
  return &lanes_.emplace(peer, std::move(lane)).first->second.As<Lane>();
}

void Mailbox::Hide() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

absl::StatusOr<std::unique_ptr<PeerMailbox>> PeerMailbox::Open(const RankIdentity& self, int peer,
                                                               const MailboxAddress& address) {
  if (!CanRead(address.proof)) return absl::UnavailableError("its memory cannot be read");
  const std::string path =
      absl::StrCat("/proc/", address.proof.process, "/fd/", address.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  const absl::Cleanup closing = [descriptor] { close(descriptor); };
  struct stat file {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (fstat(descriptor, &file) != 0 || file.st_size != LaneOffset(self.size) || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a mailbox of this mesh"));
  }
  std::unique_ptr<PeerMailbox> mailbox(new PeerMailbox());
  mailbox->process_ = address.proof.process;
  ASSIGN_OR_RETURN(mailbox->head_, SharedMapping::Map(descriptor, 0, kHeadBytes));
  RankIdentity owner = self;
  owner.rank = peer;
  const auto& head = mailbox->head_.As<MailboxHead>();
  if (head.magic != kMagic || head.lane_bytes != kLaneBytes || head.word != address.proof.value ||
      head.owner != owner) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not the mailbox of rank ", peer));
  }
  ASSIGN_OR_RETURN(mailbox->lane_,
                   SharedMapping::Map(descriptor, LaneOffset(self.rank), kLaneBytes));
  return mailbox;
}

}  // namespace esteira
