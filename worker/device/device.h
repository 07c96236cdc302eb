// Memory and order. A Device owns memory and makes queues of work; it knows no tensors, ranks or
// layers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace esteira {

// What memory is for; the device counts it by this, so that measured and predicted memory can be
// laid side by side.
enum class MemoryKind : uint8_t { kParameters, kGradients, kOptimizer, kSlots, kWorkspace, kOther };
inline constexpr int kNumMemoryKinds = static_cast<int>(MemoryKind::kOther) + 1;

class Device;

// Owns a range of device memory, zero-filled, aligned to 64 bytes at least. Movable. Freed on
// destruction, which must come before the device's.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, MemoryKind kind, std::byte* data, int64_t bytes)
      : device_(device), kind_(kind), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::kOther;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A point in a stream. Reusable: recording again moves it. An event never recorded counts as
// reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Query() const = 0;  // reached?
  virtual void Wait() const = 0;   // blocks the calling thread
  // When the stream reached it. Only after Query() is true.
  virtual absl::Time time() const = 0;
};

// A FIFO of work that runs behind the caller. The first failure of its work sticks: later work is
// skipped, events are still reached, and Synchronize reports it. Calls from one thread at a time,
// except where a method says otherwise.
class Stream {
 public:
  virtual ~Stream() = default;
  // Runs `task` in order, when the work before it is done, on a thread of the stream that may block
  // and may call the device: on a GPU too a thread of ours, not a host callback of the device.
  virtual void Enqueue(std::function<absl::Status()> task) = 0;
  virtual void Record(Event& event) = 0;
  // Work enqueued after this waits until `event` (as recorded so far) is reached.
  virtual void Wait(const Event& event) = 0;
  // Blocks until all work is done; the first failure, if any.
  virtual absl::Status Synchronize() = 0;
  // The sticky status, without blocking. Any thread.
  virtual absl::Status status() const = 0;
};

// Thread-safe. Outlives its buffers, streams and events.
class Device {
 public:
  virtual ~Device() = default;
  // ResourceExhausted names the size, the kind and what is in use.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) = 0;
  virtual std::unique_ptr<Stream> NewStream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> NewEvent() = 0;
  virtual int64_t total_memory_bytes() const = 0;
  // Bytes allocated now, and the most ever, of one kind.
  virtual int64_t bytes_in_use(MemoryKind kind) const = 0;
  virtual int64_t peak_bytes(MemoryKind kind) const = 0;

 protected:
  friend class Buffer;
  virtual void Free(std::byte* data, int64_t bytes, MemoryKind kind) = 0;
};

struct CpuDeviceOptions {
  int threads = 1;  // of one kernel
  int64_t memory_bytes =
      0;  // that may be allocated; 0: what the machine, or its control group, has
};
std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options);
// Unimplemented with one clear sentence unless built with CUDA.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

}  // namespace esteira
