#include "tests/worker/communication/nccl/gpus.h"

#include <dlfcn.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/worker/communication/nccl/additions.h"

namespace esteira {

Gpus::Gpus() {
  const nccl::LibraryNames names;
  auto library = nccl::LoadLibrary(names);
  if (!library.ok()) {
    missing_ = std::string(library.status().message());
    return;
  }
  library_ = *std::move(library);
  void* runtime = nullptr;
  for (size_t i = 0; runtime == nullptr && i < names.cuda_runtime.size(); ++i) {
    runtime = dlopen(names.cuda_runtime[i].c_str(), RTLD_NOW | RTLD_NOLOAD);
  }
  CHECK(runtime != nullptr);
  copy_ = reinterpret_cast<nccl::CudaError (*)(void*, const void*, size_t, int)>(
      dlsym(runtime, "cudaMemcpy"));
  const auto count =
      reinterpret_cast<nccl::CudaError (*)(int*)>(dlsym(runtime, "cudaGetDeviceCount"));
  const nccl::CudaError error = count(&count_);
  if (error != nccl::kCudaSuccess) {
    count_ = 0;
    missing_ = absl::StrCat("no GPU: ", library_->cuda_error_string(error));
  }
}

std::string Gpus::WhyNot(int count) const {
  if (!missing_.empty() || count_ >= count) return missing_;
  return absl::StrCat(count_, " GPU, ", count, " needed: NCCL gives each rank one of its own");
}

AddPieces Gpus::Additions() const {
  return [this](PieceType type, std::span<const void* const> pieces, float* sums, size_t count,
                nccl::CudaStream stream) {
    while (library_->stream_query(stream) == nccl::kCudaNotReady) std::this_thread::yield();
    const size_t bytes = count * (type == PieceType::kFp32 ? sizeof(float) : sizeof(uint16_t));
    std::vector<std::vector<std::byte>> fetched;
    std::vector<const void*> on_host;
    for (const void* piece : pieces) {
      fetched.emplace_back(bytes);
      Copy(fetched.back().data(), piece, bytes);
      on_host.push_back(fetched.back().data());
    }
    std::vector<float> sum(count);
    AddPiecesOnHost(type, on_host, sum.data(), count);
    Copy(sums, sum.data(), count * sizeof(float));
    return absl::OkStatus();
  };
}

void Gpus::Copy(void* to, const void* from, size_t bytes) const {
  constexpr int kByAddress = 4;  // cudaMemcpyDefault
  CHECK(copy_(to, from, bytes, kByAddress) == nccl::kCudaSuccess);
}

}  // namespace esteira
