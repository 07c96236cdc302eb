#include "worker/communication/nccl/library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace esteira::nccl {
namespace {

constexpr char kAdvice[] =
    "the loader searched LD_LIBRARY_PATH and the system's folders. Install libnccl2 of 2.14 or "
    "later and the CUDA runtime (libcudart) from NVIDIA's package repository, or the Python "
    "packages nvidia-nccl-cu12 and nvidia-cuda-runtime-cu12, whose lib folders belong into "
    "LD_LIBRARY_PATH";

struct Loaded {
  std::string name;
  void* handle;
};

absl::StatusOr<Loaded> Load(const std::vector<std::string>& names) {
  std::vector<std::string> faults;
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return Loaded{name, handle};
    faults.push_back(absl::StrCat(name, " cannot be loaded (", dlerror(), ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat(absl::StrJoin(faults, ", "), "; ", kAdvice));
}

// Binds functions of one library; keeps the first failure.
class Binder {
 public:
  explicit Binder(Loaded library) : library_(std::move(library)) {}

  template <typename Value, typename... Arguments>
  void Bind(const char* symbol, std::function<Value(Arguments...)>& function) {
    void* address = dlsym(library_.handle, symbol);
    if (address != nullptr) {
      function = reinterpret_cast<Value (*)(Arguments...)>(address);
      return;
    }
    status_.Update(absl::FailedPreconditionError(
        absl::StrCat(library_.name, " has no ", symbol, "; ", kAdvice)));
  }
  const absl::Status& status() const { return status_; }

 private:
  const Loaded library_;
  absl::Status status_;
};

absl::Status BindNccl(Loaded loaded, Library& library) {
  Binder nccl(std::move(loaded));
  nccl.Bind("ncclGetVersion", library.get_version);
  nccl.Bind("ncclGetUniqueId", library.get_unique_id);
  nccl.Bind("ncclCommInitRankConfig", library.init_rank_config);
  nccl.Bind("ncclCommGetAsyncError", library.get_async_error);
  nccl.Bind("ncclCommFinalize", library.finalize);
  nccl.Bind("ncclCommDestroy", library.destroy);
  nccl.Bind("ncclCommAbort", library.abort);
  nccl.Bind("ncclGetErrorString", library.get_error_string);
  nccl.Bind("ncclGetLastError", library.get_last_error);
  nccl.Bind("ncclGroupStart", library.group_start);
  nccl.Bind("ncclGroupEnd", library.group_end);
  nccl.Bind("ncclAllGather", library.all_gather);
  nccl.Bind("ncclReduceScatter", library.reduce_scatter);
  nccl.Bind("ncclBroadcast", library.broadcast);
  nccl.Bind("ncclSend", library.send);
  nccl.Bind("ncclRecv", library.receive);
  return nccl.status();
}

absl::Status BindCudaRuntime(Loaded loaded, Library& library) {
  Binder cuda(std::move(loaded));
  cuda.Bind("cudaSetDevice", library.set_device);
  cuda.Bind("cudaStreamCreateWithFlags", library.stream_create);
  cuda.Bind("cudaStreamDestroy", library.stream_destroy);
  cuda.Bind("cudaStreamQuery", library.stream_query);
  cuda.Bind("cudaMalloc", library.allocate);
  cuda.Bind("cudaFree", library.free);
  cuda.Bind("cudaGetErrorString", library.cuda_error_string);
  return cuda.status();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Library>> LoadLibrary(const LibraryNames& names) {
  auto library = std::make_shared<Library>();
  ASSIGN_OR_RETURN(Loaded cuda_runtime, Load(names.cuda_runtime));
  ASSIGN_OR_RETURN(Loaded nccl, Load(names.nccl));
  RETURN_IF_ERROR(BindCudaRuntime(std::move(cuda_runtime), *library));
  RETURN_IF_ERROR(BindNccl(std::move(nccl), *library));
  return std::shared_ptr<const Library>(std::move(library));
}

}  // namespace esteira::nccl
