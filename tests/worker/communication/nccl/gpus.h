#pragma once

#include <memory>
#include <string>

#include "worker/communication/nccl/library.h"
#include "worker/communication/nccl/nccl_collectives.h"

namespace esteira {

// The GPUs of this machine, through the NCCL and the CUDA runtime that are installed on it.
class Gpus {
 public:
  Gpus();

  // Empty when `count` GPUs can be used.
  std::string WhyNot(int count) const;
  const std::shared_ptr<const nccl::Library>& library() const { return library_; }
  // Fetches the pieces, adds them on the host and writes the sums back.
  AddPieces Additions() const;
  // Between host and GPU memory, in any direction.
  void Copy(void* to, const void* from, size_t bytes) const;

 private:
  std::string missing_;
  int count_ = 0;
  std::shared_ptr<const nccl::Library> library_;
  std::function<nccl::CudaError(void*, const void*, size_t, int)> copy_;  // cudaMemcpy
};

}  // namespace esteira
