// Memory of other processes of this machine, read in place: one copy, no sockets. Stateless; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace esteira {

// A word of a process. Whoever finds `value` at `address` of `process` reads the right memory:
// process ids alone say nothing across containers and machines.
struct MemoryProof {
  int64_t process = 0;
  uint64_t address = 0;
  uint64_t value = 0;
};
static_assert(sizeof(MemoryProof) == 24);

MemoryProof OwnMemoryProof();
bool CanRead(const MemoryProof& proof);
// Unavailable: the process is gone, or its memory is not there.
absl::Status ReadMemory(int64_t process, uint64_t address, std::span<std::byte> to);

}  // namespace esteira
