#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "worker/communication/nccl/library.h"
#include "worker/communication/nccl/nccl_collectives.h"

namespace esteira {

// Not used by the folder under test: what NCCL's own sum of fp32 would do.
inline constexpr auto kNcclFloat32 = static_cast<nccl::DataType>(7);

struct FakeNcclOptions {
  uint64_t seed = 0;           // of the orders of addition
  int in_progress_polls = 2;   // by which each group and each communicator is in progress
  std::string failing_call{};  // its C name; fails with kFailure (CUDA's: kCudaFailure)
  bool abort_hangs = false;    // until ReleaseAborts
};
inline constexpr auto kFailure = static_cast<nccl::Result>(5);
inline constexpr auto kCudaFailure = static_cast<nccl::CudaError>(700);

// NCCL and the CUDA runtime in host memory: ranks are threads of this process, each with a GPU of
// its own. A collective happens when all members' calls of the same number have reached the front
// of their streams, a transfer when both ends have; calls that do not fit each other never happen.
// Sums are really formed, each element's in an order of its own. Calls on the wrong GPU or outside
// of a group are refused. Thread-safe.
class FakeNccl {
 public:
  explicit FakeNccl(const FakeNcclOptions& options);
  ~FakeNccl();

  std::shared_ptr<const nccl::Library> library() const;
  AddPieces Additions() const;
  // All communicators but those of this GPU learn that a peer is lost.
  void Lose(int device);
  void ReleaseAborts();
  int aborts() const;
  int queries() const;  // of streams
  // Communicators, streams and allocations that exist, and groups that have not ended.
  int alive() const;

 private:
  class Machine;
  const std::shared_ptr<Machine> machine_;
};

}  // namespace esteira
