#include "worker/device/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "worker/device/cpu/cpu_event.h"
#include "worker/device/cpu/cpu_stream.h"

namespace esteira {
namespace {

constexpr int64_t kAlignment = 64;
// From this size on a buffer starts on a huge page and asks for more of them.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

constexpr std::array<const char*, kNumMemoryKinds> kKindNames = {
    "parameters", "gradients", "optimizer states", "slots", "workspace", "other"};

size_t IndexOf(MemoryKind kind) { return static_cast<size_t>(kind); }

// The memory of the machine, or of the control group (version 2, then 1) if that is less.
int64_t MemoryOfThisMachine() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      total_memory_bytes_(options.memory_bytes > 0
                              ? std::min(options.memory_bytes, MemoryOfThisMachine())
                              : MemoryOfThisMachine()) {}

absl::StatusOr<Buffer> CpuDevice::Allocate(int64_t bytes, MemoryKind kind) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  if (absl::Status status = Reserve(bytes, kind); !status.ok()) return status;
  const int64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kAlignment;
  // An empty buffer has an address too: views without data mean something else.
  const auto size = static_cast<size_t>(std::max(bytes, kAlignment));
  void* data = nullptr;
  if (posix_memalign(&data, static_cast<size_t>(alignment), size) != 0) {
    std::lock_guard lock(mutex_);
    in_use_[IndexOf(kind)] -= bytes;
    return OutOfMemoryLocked(bytes, kind);
  }
  // Only advice: without huge pages everything works, a little slower.
  if (bytes >= kHugePageBytes) madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 0, size);
  return Buffer(this, kind, static_cast<std::byte*>(data), bytes);
}

absl::Status CpuDevice::Reserve(int64_t bytes, MemoryKind kind) {
  std::lock_guard lock(mutex_);
  if (bytes > total_memory_bytes_ - TotalInUseLocked()) return OutOfMemoryLocked(bytes, kind);
  int64_t& in_use = in_use_[IndexOf(kind)];
  in_use += bytes;
  peak_[IndexOf(kind)] = std::max(peak_[IndexOf(kind)], in_use);
  return absl::OkStatus();
}

void CpuDevice::Free(std::byte* data, int64_t bytes, MemoryKind kind) {
  std::free(data);
  std::lock_guard lock(mutex_);
  in_use_[IndexOf(kind)] -= bytes;
}

absl::Status CpuDevice::OutOfMemoryLocked(int64_t bytes, MemoryKind kind) const {
  std::string message =
      absl::StrCat("cannot allocate ", bytes, " bytes for ", kKindNames[IndexOf(kind)], ": ",
                   TotalInUseLocked(), " of ", total_memory_bytes_, " bytes are in use");
  const char* separator = " (";
  for (size_t i = 0; i < in_use_.size(); ++i) {
    if (in_use_[i] == 0) continue;
    absl::StrAppend(&message, separator, kKindNames[i], " ", in_use_[i]);
    separator = ", ";
  }
  if (TotalInUseLocked() > 0) message += ")";
  return absl::ResourceExhaustedError(message);
}

int64_t CpuDevice::TotalInUseLocked() const {
  return std::accumulate(in_use_.begin(), in_use_.end(), int64_t{0});
}

std::unique_ptr<Stream> CpuDevice::NewStream(const std::string& name) {
  return std::make_unique<CpuStream>(name, options_.threads);
}

std::unique_ptr<Event> CpuDevice::NewEvent() { return std::make_unique<CpuEvent>(); }

int64_t CpuDevice::bytes_in_use(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  return in_use_[IndexOf(kind)];
}

int64_t CpuDevice::peak_bytes(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  return peak_[IndexOf(kind)];
}

}  // namespace esteira
