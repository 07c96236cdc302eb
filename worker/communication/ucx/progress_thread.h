#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {

// The only thread that calls UCX for one mesh. Sleeps when there is nothing to do: several trainers
// share one machine.
class ProgressThread {
 public:
  // `mesh` outlives it.
  explicit ProgressThread(UcxMesh& mesh);
  ProgressThread(const ProgressThread&) = delete;
  // After the work that is posted, and without waiting for transfers.
  ~ProgressThread();

  // Runs `work` on the thread, in the order of posting. Any thread.
  void Post(std::function<void()> work);

 private:
  void Loop();
  bool RunPosted();
  void Sleep();

  UcxMesh& mesh_;
  const int wake_fd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool sleeping_ = false;  // wake_fd_ must be written to
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace esteira
