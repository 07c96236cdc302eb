// What library.h declares is what the headers of NCCL and of the CUDA runtime declare.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <type_traits>

#include "gtest/gtest.h"
#include "worker/communication/nccl/library.h"

namespace esteira {
namespace {

// Passed and returned alike: numbers, pointers and structs of one size.
template <typename A, typename B>
constexpr bool kAlike =
    std::is_void_v<A> || std::is_void_v<B>
        ? std::is_void_v<A>&& std::is_void_v<B>
        : sizeof(std::conditional_t<std::is_void_v<A>, int, A>) ==
                  sizeof(std::conditional_t<std::is_void_v<B>, int, B>) &&
              std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> ==
                  std::is_class_v<B>&& std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <typename Ours, typename Theirs>
constexpr bool kSameFunction = false;
template <typename Value, typename... Arguments, typename TheirValue, typename... Theirs>
requires(sizeof...(Arguments) == sizeof...(Theirs)) constexpr bool kSameFunction<
    std::function<Value(Arguments...)>, TheirValue (*)(Theirs...)> = kAlike<Value, TheirValue> &&
                                                                     (kAlike<Arguments, Theirs> &&
                                                                      ...);

#define ESTEIRA_SAME(member, theirs) \
  static_assert(kSameFunction<decltype(nccl::Library::member), decltype(&::theirs)>)

ESTEIRA_SAME(get_version, ncclGetVersion);
ESTEIRA_SAME(get_unique_id, ncclGetUniqueId);
ESTEIRA_SAME(init_rank_config, ncclCommInitRankConfig);
ESTEIRA_SAME(get_async_error, ncclCommGetAsyncError);
ESTEIRA_SAME(finalize, ncclCommFinalize);
ESTEIRA_SAME(destroy, ncclCommDestroy);
ESTEIRA_SAME(abort, ncclCommAbort);
ESTEIRA_SAME(get_error_string, ncclGetErrorString);
ESTEIRA_SAME(get_last_error, ncclGetLastError);
ESTEIRA_SAME(group_start, ncclGroupStart);
ESTEIRA_SAME(group_end, ncclGroupEnd);
ESTEIRA_SAME(all_gather, ncclAllGather);
ESTEIRA_SAME(reduce_scatter, ncclReduceScatter);
ESTEIRA_SAME(broadcast, ncclBroadcast);
ESTEIRA_SAME(send, ncclSend);
ESTEIRA_SAME(receive, ncclRecv);
ESTEIRA_SAME(set_device, cudaSetDevice);
ESTEIRA_SAME(stream_create, cudaStreamCreateWithFlags);
ESTEIRA_SAME(stream_destroy, cudaStreamDestroy);
ESTEIRA_SAME(stream_query, cudaStreamQuery);
static_assert(kSameFunction<decltype(nccl::Library::allocate), cudaError_t (*)(void**, size_t)>);
ESTEIRA_SAME(free, cudaFree);
ESTEIRA_SAME(cuda_error_string, cudaGetErrorString);

TEST(NcclHeaderTest, ValuesAreTheHeaders) {
  EXPECT_EQ(int{nccl::kSuccess}, ::ncclSuccess);
  EXPECT_EQ(int{nccl::kRemoteError}, ::ncclRemoteError);
  EXPECT_EQ(int{nccl::kInProgress}, ::ncclInProgress);
  EXPECT_EQ(int{nccl::kUint8}, ::ncclUint8);
  EXPECT_EQ(int{nccl::kInt64}, ::ncclInt64);
  EXPECT_EQ(int{nccl::kSum}, ::ncclSum);
  EXPECT_EQ(int{nccl::kCudaSuccess}, ::cudaSuccess);
  EXPECT_EQ(int{nccl::kCudaNotReady}, ::cudaErrorNotReady);
  EXPECT_EQ(nccl::kStreamNonBlocking, unsigned{cudaStreamNonBlocking});
  EXPECT_EQ(sizeof(nccl::UniqueId), sizeof(::ncclUniqueId));
}

// The fields of 2.14, at their places in whatever version this header is.
TEST(NcclHeaderTest, ConfigBeginsAsTheHeaders) {
  const ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  EXPECT_EQ(offsetof(nccl::Config, magic), offsetof(::ncclConfig_t, magic));
  EXPECT_EQ(offsetof(nccl::Config, version), offsetof(::ncclConfig_t, version));
  EXPECT_EQ(offsetof(nccl::Config, blocking), offsetof(::ncclConfig_t, blocking));
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, unsigned{NCCL_VERSION(2, 14, 0)});
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_LE(ours.size, theirs.size);
}

}  // namespace
}  // namespace esteira
