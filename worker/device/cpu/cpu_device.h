#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "worker/device/device.h"

namespace esteira {

// The host's memory and threads. Refuses an allocation that would take more than the machine's (or
// the control group's) memory, since Linux would grant it and kill the process later. Thread-safe.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);

  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  std::unique_ptr<Stream> NewStream(const std::string& name) override;
  std::unique_ptr<Event> NewEvent() override;
  int64_t total_memory_bytes() const override { return total_memory_bytes_; }
  int64_t bytes_in_use(MemoryKind kind) const override;
  int64_t peak_bytes(MemoryKind kind) const override;

 protected:
  void Free(std::byte* data, int64_t bytes, MemoryKind kind) override;

 private:
  absl::Status Reserve(int64_t bytes, MemoryKind kind);
  absl::Status OutOfMemoryLocked(int64_t bytes, MemoryKind kind) const;
  int64_t TotalInUseLocked() const;

  const CpuDeviceOptions options_;
  const int64_t total_memory_bytes_;
  mutable std::mutex mutex_;
  std::array<int64_t, kNumMemoryKinds> in_use_{};
  std::array<int64_t, kNumMemoryKinds> peak_{};
};

}  // namespace esteira
