// The few functions, types and values of NCCL (2.14 or later) and of the CUDA runtime (11 or later)
// that this folder uses, declared here so that neither is needed to build, and loaded at run time.
// Their names and shapes are those of nccl.h and cuda_runtime_api.h; nccl_header_test compares them
// where these headers are found.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace esteira::nccl {

using Comm = struct OpaqueComm*;          // ncclComm_t
using CudaStream = struct OpaqueStream*;  // cudaStream_t

struct UniqueId {
  char bytes[128];
};
enum Result : int {
  kSuccess = 0,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};
enum DataType : int { kUint8 = 1, kInt64 = 4 };
enum ReduceOp : int { kSum = 0 };
// ncclConfig_t as in 2.14; its first three fields tell later versions which it is.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

enum CudaError : int { kCudaSuccess = 0, kCudaNotReady = 600 };
inline constexpr unsigned kStreamNonBlocking = 1;

// The functions, in a table that tests fill with others; library.cc has their C names.
struct Library {
  std::function<Result(int*)> get_version;
  std::function<Result(UniqueId*)> get_unique_id;
  std::function<Result(Comm*, int size, UniqueId, int rank, Config*)> init_rank_config;
  std::function<Result(Comm, Result*)> get_async_error;
  std::function<Result(Comm)> finalize;
  std::function<Result(Comm)> destroy;
  std::function<Result(Comm)> abort;
  std::function<const char*(Result)> get_error_string;
  std::function<const char*(Comm)> get_last_error;
  std::function<Result()> group_start;
  std::function<Result()> group_end;
  // From, to, elements (of a piece, where there are pieces), type.
  std::function<Result(const void*, void*, size_t, DataType, Comm, CudaStream)> all_gather;
  std::function<Result(const void*, void*, size_t, DataType, ReduceOp, Comm, CudaStream)>
      reduce_scatter;
  std::function<Result(const void*, void*, size_t, DataType, int root, Comm, CudaStream)> broadcast;
  std::function<Result(const void*, size_t, DataType, int peer, Comm, CudaStream)> send;
  std::function<Result(void*, size_t, DataType, int peer, Comm, CudaStream)> receive;

  std::function<CudaError(int)> set_device;
  std::function<CudaError(CudaStream*, unsigned flags)> stream_create;
  std::function<CudaError(CudaStream)> stream_destroy;
  std::function<CudaError(CudaStream)> stream_query;
  std::function<CudaError(void**, size_t)> allocate;
  std::function<CudaError(void*)> free;
  std::function<const char*(CudaError)> cuda_error_string;
};

// Names that the loader tries, in this order.
struct LibraryNames {
  std::vector<std::string> nccl = {"libnccl.so.2"};
  std::vector<std::string> cuda_runtime = {"libcudart.so.13", "libcudart.so.12",
                                           "libcudart.so.11.0"};
};

// FailedPrecondition names what cannot be loaded, where it was searched and what to install. Once
// loaded, a library stays until the process ends.
absl::StatusOr<std::shared_ptr<const Library>> LoadLibrary(const LibraryNames& names = {});

}  // namespace esteira::nccl
