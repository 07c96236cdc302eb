#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "worker/device/cpu/cpu_event.h"
#include "worker/device/device.h"

namespace esteira {

// One thread with a FIFO. The thread takes all that is queued in one go and sleeps on a condition
// variable when nothing is: it never spins. Events come from the same device. Destruction runs what
// is queued, then joins the thread.
class CpuStream : public Stream {
 public:
  // `threads`: of OpenMP regions that its work opens.
  CpuStream(const std::string& name, int threads);
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  void Enqueue(std::function<absl::Status()> task) override;
  void Record(Event& event) override;
  void Wait(const Event& event) override;
  absl::Status Synchronize() override;
  absl::Status status() const override;

 private:
  struct Item {
    enum class Kind { kTask, kRecord, kWait };
    Kind kind;
    std::function<absl::Status()> task;
    std::shared_ptr<EventState> event;
    uint64_t generation = 0;
  };

  void Push(Item item);
  void Loop(const std::string& name, int threads);
  void Run(Item& item);

  mutable std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable idle_;
  std::vector<Item> queue_;
  bool running_ = false;  // the thread has taken items that it has not finished
  bool stopping_ = false;
  absl::Status status_;
  bool failed_ = false;  // the thread's own copy of !status_.ok()
  std::thread thread_;
};

}  // namespace esteira
