#include "worker/device/cpu/cpu_stream.h"

#include <omp.h>
#include <pthread.h>

#include <utility>

namespace esteira {
namespace {

constexpr size_t kLongestThreadName = 15;  // Linux

const std::shared_ptr<EventState>& StateOf(const Event& event) {
  return static_cast<const CpuEvent&>(event).state();
}

}  // namespace

CpuStream::CpuStream(const std::string& name, int threads)
    : thread_([this, name, threads] { Loop(name, threads); }) {}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

void CpuStream::Enqueue(std::function<absl::Status()> task) {
  Push({.kind = Item::Kind::kTask, .task = std::move(task), .event = nullptr});
}

void CpuStream::Record(Event& event) {
  const auto& state = StateOf(event);
  Push({.kind = Item::Kind::kRecord,
        .task = nullptr,
        .event = state,
        .generation = state->BeginGeneration()});
}

void CpuStream::Wait(const Event& event) {
  const auto& state = StateOf(event);
  const uint64_t generation = state->newest();
  if (state->Reached(generation)) return;
  Push({.kind = Item::Kind::kWait, .task = nullptr, .event = state, .generation = generation});
}

absl::Status CpuStream::Synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !running_; });
  return status_;
}

absl::Status CpuStream::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void CpuStream::Push(Item item) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    wake = queue_.empty() && !running_;
    queue_.push_back(std::move(item));
  }
  if (wake) queued_.notify_one();
}

void CpuStream::Loop(const std::string& name, int threads) {
  pthread_setname_np(pthread_self(), name.substr(0, kLongestThreadName).c_str());
  omp_set_num_threads(threads);
  std::vector<Item> batch;
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return !queue_.empty() || stopping_; });
    if (queue_.empty()) return;
    batch.swap(queue_);
    running_ = true;
    lock.unlock();
    for (Item& item : batch) Run(item);
    batch.clear();
    lock.lock();
    running_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

void CpuStream::Run(Item& item) {
  switch (item.kind) {
    case Item::Kind::kTask: {
      if (failed_) return;
      absl::Status status = item.task();
      // What the task holds is let go before the events behind it are reached.
      item.task = nullptr;
      if (status.ok()) return;
      failed_ = true;
      std::lock_guard lock(mutex_);
      status_ = std::move(status);
      return;
    }
    case Item::Kind::kRecord: item.event->EndGeneration(item.generation); return;
    case Item::Kind::kWait: item.event->WaitFor(item.generation); return;
  }
}

}  // namespace esteira
