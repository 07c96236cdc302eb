#include <dlfcn.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/communication/nccl/communicator.h"
#include "worker/communication/nccl/library.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclLibraryTest, EachMemberIsTheFunctionOfItsName) {
  const auto loaded = nccl::LoadLibrary({{NCCL_STUB}, {NCCL_STUB}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const nccl::Library& l = **loaded;
  const auto* last = static_cast<const char* const*>(
      dlsym(dlopen(NCCL_STUB, RTLD_NOW | RTLD_NOLOAD), "esteira_last_called"));
  ASSERT_NE(last, nullptr);
  const auto calls = [last](const char* name, const auto&) { EXPECT_STREQ(*last, name); };
  calls("ncclGetVersion", l.get_version(nullptr));
  calls("ncclGetUniqueId", l.get_unique_id(nullptr));
  calls("ncclCommInitRankConfig", l.init_rank_config(nullptr, 1, {}, 0, nullptr));
  calls("ncclCommGetAsyncError", l.get_async_error(nullptr, nullptr));
  calls("ncclCommFinalize", l.finalize(nullptr));
  calls("ncclCommDestroy", l.destroy(nullptr));
  calls("ncclCommAbort", l.abort(nullptr));
  calls("ncclGetErrorString", l.get_error_string(nccl::kSuccess));
  calls("ncclGetLastError", l.get_last_error(nullptr));
  calls("ncclGroupStart", l.group_start());
  calls("ncclGroupEnd", l.group_end());
  calls("ncclAllGather", l.all_gather(nullptr, nullptr, 0, nccl::kUint8, nullptr, nullptr));
  calls("ncclReduceScatter",
        l.reduce_scatter(nullptr, nullptr, 0, nccl::kInt64, nccl::kSum, nullptr, nullptr));
  calls("ncclBroadcast", l.broadcast(nullptr, nullptr, 0, nccl::kUint8, 0, nullptr, nullptr));
  calls("ncclSend", l.send(nullptr, 0, nccl::kUint8, 0, nullptr, nullptr));
  calls("ncclRecv", l.receive(nullptr, 0, nccl::kUint8, 0, nullptr, nullptr));
  calls("cudaSetDevice", l.set_device(0));
  calls("cudaStreamCreateWithFlags", l.stream_create(nullptr, 0));
  calls("cudaStreamDestroy", l.stream_destroy(nullptr));
  calls("cudaStreamQuery", l.stream_query(nullptr));
  calls("cudaMalloc", l.allocate(nullptr, 0));
  calls("cudaFree", l.free(nullptr));
  calls("cudaGetErrorString", l.cuda_error_string(nccl::kCudaSuccess));
}

TEST(NcclLibraryTest, WhatIsMissingIsNamed) {
  const auto fails = [](const nccl::LibraryNames& names, const auto& words) {
    const absl::Status status = nccl::LoadLibrary(names).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), AllOf(words, HasSubstr("Install libnccl2")));
  };
  fails({{"libno-nccl.so.2"}, {NCCL_STUB}}, HasSubstr("libno-nccl.so.2 cannot be loaded (libno"));
  fails({{NCCL_STUB}, {"libno-rt.so.13", "libno-rt.so.12"}},
        AllOf(HasSubstr("libno-rt.so.13 cannot"), HasSubstr("libno-rt.so.12 cannot")));
  fails({{"libm.so.6"}, {"libno-rt.so.13", NCCL_STUB}}, HasSubstr("libm.so.6 has no ncclGet"));
  fails({{NCCL_STUB}, {"libm.so.6"}}, HasSubstr("libm.so.6 has no cudaSetDevice"));
}

// The NCCL that is installed here, if any: what can be asked of it without a GPU, or of one alone.
TEST(NcclLibraryTest, TheInstalledNcclAnswers) {
  const auto loaded = nccl::LoadLibrary();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
  int version = 0;
  ASSERT_EQ((*loaded)->get_version(&version), nccl::kSuccess);
  EXPECT_GE(version, 21400);
  EXPECT_EQ(std::string((*loaded)->get_error_string(nccl::kInProgress)),
            "NCCL operation in progress");
  const auto id = NewNcclId(**loaded);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto opened = NcclCommunicator::Open(*loaded, {.unique_id = *id});
  if (!opened.ok()) {
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
    EXPECT_THAT(opened.status().message(), HasSubstr("GPU 0 cannot be used: "));
  }
  RecordProperty("nccl_version", version);
}

}  // namespace
}  // namespace esteira
