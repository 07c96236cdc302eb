#include "worker/communication/host/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

uint64_t RandomWord() {
  std::random_device source;
  return uint64_t{source()} << 32 | source();
}

}  // namespace

MemoryProof OwnMemoryProof() {
  static const uint64_t word = RandomWord();
  return {getpid(), reinterpret_cast<uint64_t>(&word), word};
}

bool CanRead(const MemoryProof& proof) {
  uint64_t word = ~proof.value;
  const std::span<uint64_t> to(&word, 1);
  return ReadMemory(proof.process, proof.address, std::as_writable_bytes(to)).ok() &&
         word == proof.value;
}

absl::Status ReadMemory(int64_t process, uint64_t address, std::span<std::byte> to) {
  size_t done = 0;
  while (done < to.size()) {
    iovec local{to.data() + done, to.size() - done};
    // An address of another process: here it is only a number.
    iovec remote{reinterpret_cast<void*>(address + done),  // NOLINT(performance-no-int-to-ptr)
                 local.iov_len};
    const ssize_t count =
        process_vm_readv(static_cast<pid_t>(process), &local, 1, &remote, 1, /*flags=*/0);
    if (count <= 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("reading memory of process ", process));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace esteira
