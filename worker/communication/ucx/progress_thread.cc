#include "worker/communication/ucx/progress_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

// A reply often comes within this time; waking up takes about as long.
constexpr auto kSpin = std::chrono::microseconds(20);
// An upper bound on a sleep, should a wake-up of UCX ever get lost.
constexpr auto kLongestSleep = std::chrono::milliseconds(10);

}  // namespace

ProgressThread::ProgressThread(UcxMesh& mesh)
    : mesh_(mesh), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_fd_ >= 0);
  thread_ = std::thread([this] { Loop(); });
}

ProgressThread::~ProgressThread() {
  Post([this] { stopping_ = true; });
  thread_.join();
  close(wake_fd_);
}

void ProgressThread::Post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  posted_.push_back(std::move(work));
  if (!std::exchange(sleeping_, false)) return;
  const uint64_t one = 1;
  CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
}

void ProgressThread::Loop() {
  auto last_work = std::chrono::steady_clock::now();
  while (!stopping_) {
    const bool ran = RunPosted();
    const bool moved = mesh_.Progress();
    const auto now = std::chrono::steady_clock::now();
    if (ran || moved) {
      last_work = now;
    } else if (now - last_work > kSpin) {
      Sleep();
    }
  }
}

bool ProgressThread::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& task : work) task();
  return !work.empty();
}

void ProgressThread::Sleep() {
  if (!mesh_.worker().Arm()) return;
  {
    std::lock_guard lock(mutex_);
    if (!posted_.empty()) return;
    sleeping_ = true;
  }
  const auto now = std::chrono::steady_clock::now();
  const Deadline until = std::clamp(mesh_.NextDeadline(), now, now + kLongestSleep);
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  std::array<pollfd, 2> sources = {{{mesh_.worker().event_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}}};
  poll(sources.data(), sources.size(), static_cast<int>(millis));
  if ((sources[1].revents & POLLIN) != 0) {
    uint64_t count = 0;
    CHECK(read(wake_fd_, &count, sizeof(count)) == sizeof(count));
  }
  std::lock_guard lock(mutex_);
  sleeping_ = false;
}

}  // namespace esteira
