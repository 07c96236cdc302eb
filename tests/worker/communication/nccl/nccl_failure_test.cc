// What goes wrong becomes a status in time, and leaves nothing behind.
#include <future>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/communication/nccl/fake_nccl.h"
#include "worker/communication/nccl/nccl_collectives.h"
#include "worker/device/device.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Milliseconds(30);

class NcclFailureTest : public ::testing::Test {
 protected:
  using Member = absl::StatusOr<std::unique_ptr<NcclCollectives>>;

  // The members that `come` of a group of `size`.
  std::vector<Member> Open(FakeNccl& fake, int size, int come) {
    std::vector<std::future<Member>> opening;
    opening.reserve(static_cast<size_t>(come));
    const std::string id = NewNcclId(*fake.library()).value();
    for (int rank = 0; rank < come; ++rank) {
      opening.push_back(std::async(std::launch::async, [this, &fake, id, size, rank] {
        return OpenNccl(fake.library(),
                        {.unique_id = id,
                         .position = rank,
                         .size = size,
                         .device = rank,
                         .timeout = timeout_,
                         .abort_limit = abort_limit_},
                        /*group_id=*/7, with_additions_ ? fake.Additions() : nullptr);
      }));
    }
    std::vector<Member> opened;
    opened.reserve(opening.size());
    for (auto& member : opening) opened.push_back(member.get());
    return opened;
  }

  // The status of an all-gather by this member alone.
  absl::Status GatherAlone(NcclCollectives& member) {
    return StatusOf([&](Stream& stream) { member.AllGather(bytes_, stream); });
  }

  absl::Status StatusOf(const std::function<void(Stream&)>& enqueue) {
    const auto stream = device_->NewStream("communication");
    enqueue(*stream);
    return stream->Synchronize();
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  absl::Duration timeout_ = absl::Minutes(1);
  absl::Duration abort_limit_ = absl::Minutes(1);
  bool with_additions_ = true;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(96);
};

TEST_F(NcclFailureTest, AMissingMemberEndsOpeningAtTheDeadline) {
  FakeNccl fake({});
  timeout_ = kSoon;
  const auto opened = Open(fake, /*size=*/3, /*come=*/2);
  for (const auto& member : opened) {
    EXPECT_EQ(member.status().code(), absl::StatusCode::kDeadlineExceeded) << member.status();
    EXPECT_THAT(member.status().message(), HasSubstr("within 30ms: a member is missing"));
  }
  EXPECT_EQ(fake.aborts(), 2);
  EXPECT_EQ(fake.alive(), 0);
}

TEST_F(NcclFailureTest, AMissingMemberEndsAnOperationAtTheDeadline) {
  FakeNccl fake({});
  timeout_ = absl::Seconds(1);
  {
    const auto opened = Open(fake, 2, 2);
    const absl::Status status = GatherAlone(**opened[0]);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr("AllGather 0 of group 7: the GPU has not finished"));
    EXPECT_EQ(fake.aborts(), 1);
    // For good: the next operation fails alike, and at once.
    const absl::Status next = StatusOf([&](Stream& stream) { (*opened[0])->Barrier(stream); });
    EXPECT_EQ(next.code(), absl::StatusCode::kDeadlineExceeded) << next;
    EXPECT_EQ(fake.aborts(), 1);
  }
  EXPECT_EQ(fake.alive(), 0);
}

// Members that disagree about the order of operations meet the deadline, not each other's data.
TEST_F(NcclFailureTest, OperationsThatDoNotFitEndAtTheDeadline) {
  FakeNccl fake({});
  timeout_ = absl::Seconds(1);
  const auto opened = Open(fake, 2, 2);
  const auto other = std::async(std::launch::async, [&] {
    return StatusOf([&](Stream& stream) { (*opened[1])->Broadcast(bytes_, 0, stream); });
  });
  EXPECT_EQ(GatherAlone(**opened[0]).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(NcclFailureTest, ALostPeerIsUnavailable) {
  FakeNccl fake({});
  {
    const auto opened = Open(fake, 2, 2);
    const auto stream = device_->NewStream("communication");
    (*opened[0])->AllGather(bytes_, *stream);
    fake.Lose(/*device=*/1);
    const absl::Status status = stream->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr("remote; what went before (NCCL 2.26.6)"));
  }
  EXPECT_EQ(fake.aborts(), 1);  // the lost one has seen nothing
  EXPECT_EQ(fake.alive(), 0);
}

TEST_F(NcclFailureTest, AbortEndsWhatRunsWithItsCause) {
  FakeNccl fake({});
  const auto opened = Open(fake, 2, 2);
  const auto stream = device_->NewStream("communication");
  (*opened[0])->AllGather(bytes_, *stream);
  while (fake.queries() == 0) std::this_thread::yield();  // until it waits for the other
  (*opened[0])->Abort(absl::AbortedError("the epoch is over"));
  (*opened[0])->Abort(absl::InternalError("a consequence"));
  const absl::Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(status.message(), HasSubstr("the epoch is over"));
  EXPECT_EQ(fake.aborts(), 1);
  (*opened[1])->Abort(absl::AbortedError("the epoch is over"));
}

// An aborted member that is idle does not wait for the others when it is closed.
TEST_F(NcclFailureTest, AnAbortedMemberIsNotFinalized) {
  FakeNccl fake({});
  for (auto& member : Open(fake, 2, 2)) (*member)->Abort(absl::AbortedError("the epoch is over"));
  EXPECT_EQ(fake.aborts(), 2);
  EXPECT_EQ(fake.alive(), 0);
}

TEST_F(NcclFailureTest, AnAbortThatHangsIsReportedAndLeft) {
  FakeNccl fake({.abort_hangs = true});
  timeout_ = absl::Seconds(1);
  abort_limit_ = kSoon;
  {
    const auto opened = Open(fake, 2, 2);
    const absl::Status status = GatherAlone(**opened[0]);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(),
                HasSubstr("not aborted after 30ms, and the GPU may still use the buffers: end the "
                          "process"));
  }
  EXPECT_EQ(fake.alive(), 3);  // communicator, stream and bytes of the one that hangs
  fake.ReleaseAborts();
  while (fake.alive() == 3) std::this_thread::yield();  // the abort's own thread is still at it
}

// Every call that can fail: its name is in the status, and nothing is left.
TEST_F(NcclFailureTest, AFailedCallOfOpeningIsNamed) {
  for (const char* call : {"cudaSetDevice", "cudaStreamCreateWithFlags", "cudaMalloc",
                           "ncclCommInitRankConfig", "ncclCommGetAsyncError"}) {
    FakeNccl fake({.failing_call = call});
    const auto opened = Open(fake, 1, 1);
    const bool no_gpu = call == std::string("cudaSetDevice");
    EXPECT_EQ(opened[0].status().code(),
              no_gpu ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInternal);
    EXPECT_THAT(opened[0].status().message(), HasSubstr(no_gpu ? "GPU 0 cannot be used" : call));
    EXPECT_EQ(fake.alive(), 0) << call;
  }
}

TEST_F(NcclFailureTest, AFailedCallOfAnOperationIsNamedAndAborts) {
  std::vector<float> floats(8);
  std::vector<int64_t> integers(8);
  std::vector<std::byte> scratch(64);
  for (const char* call : {"ncclGroupStart", "ncclGroupEnd", "ncclAllGather", "ncclReduceScatter",
                           "ncclBroadcast", "ncclSend", "ncclRecv", "cudaStreamQuery"}) {
    FakeNccl fake({.failing_call = call});
    {
      const auto opened = Open(fake, 2, 2);
      ASSERT_TRUE(opened[0].ok()) << opened[0].status();
      NcclCollectives& member = **opened[0];
      const absl::Status status = StatusOf([&](Stream& stream) {
        const std::string name = call;
        if (name == "ncclReduceScatter") return member.ReduceScatter(integers, scratch, stream);
        if (name == "ncclBroadcast") return member.Broadcast(bytes_, 0, stream);
        if (name == "ncclSend") return member.ReduceScatter(floats, scratch, stream);
        if (name == "ncclRecv") return member.AllReduce(floats, scratch, stream);
        member.AllGather(bytes_, stream);
      });
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << call;
      EXPECT_THAT(status.message(), HasSubstr(call));
      EXPECT_EQ(fake.aborts(), 1) << call;
    }
    EXPECT_EQ(fake.alive(), 0) << call;
  }
}

TEST_F(NcclFailureTest, AFailedCallOfClosingAborts) {
  FakeNccl fake({.failing_call = "ncclCommFinalize"});
  Open(fake, 2, 2);
  EXPECT_EQ(fake.aborts(), 2);
  EXPECT_EQ(fake.alive(), 0);
}

// Never NCCL's own sum in their place.
TEST_F(NcclFailureTest, WithoutAdditionsSumsWhoseOrderCountsAreRefused) {
  FakeNccl fake({});
  with_additions_ = false;
  const auto opened = Open(fake, 2, 2);
  NcclCollectives& member = **opened[0];
  std::vector<float> floats(8), sums(4);
  std::vector<uint16_t> halves(8);
  std::vector<std::byte> scratch(64);
  const auto refused = [&](const std::function<void(Stream&)>& enqueue) {
    const absl::Status status = StatusOf(enqueue);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(status.message(), HasSubstr("NCCL's own have no fixed order"));
  };
  refused([&](Stream& stream) { member.ReduceScatter(floats, scratch, stream); });
  refused([&](Stream& stream) { member.AllReduce(floats, scratch, stream); });
  refused([&](Stream& stream) { member.ReduceScatterBf16Each({{halves, sums}}, scratch, stream); });
}

TEST_F(NcclFailureTest, WrongArgumentsFailTheStream) {
  FakeNccl fake({});
  const auto opened = Open(fake, 2, 2);
  NcclCollectives& member = **opened[0];
  std::vector<float> even(8), uneven(9);
  std::vector<int64_t> integers(8);
  std::vector<uint16_t> halves(8);
  std::vector<std::byte> scratch(64);
  const auto refused = [&](const std::function<void(Stream&)>& enqueue, const char* words) {
    const absl::Status status = StatusOf(enqueue);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  const auto bytes = [](std::vector<float>& floats) {
    return std::as_writable_bytes(std::span(floats));
  };
  refused([&](Stream& s) { member.ReduceScatter(uneven, scratch, s); }, "equal pieces");
  refused([&](Stream& s) { member.ReduceScatter(integers, {}, s); }, "scratch of 0 bytes");
  refused([&](Stream& s) { member.AllReduce(even, {}, s); }, "scratch of 0 bytes");
  refused(
      [&](Stream& s) {
        member.AllGatherEach({bytes(even), bytes(uneven).first(9)}, s);
      },
      "equal pieces");
  refused(
      [&](Stream& s) {
        member.ReduceScatterBf16Each({{halves, even}}, scratch, s);
      },
      "8 sums for a piece of 4");
  refused([&](Stream& s) { member.Broadcast(bytes(even), 2, s); }, "root 2 of 2");
  EXPECT_EQ(fake.aborts(), 0);
}

TEST_F(NcclFailureTest, AGroupThatCannotBeIsRefused) {
  FakeNccl fake({});
  const std::string id = NewNcclId(*fake.library()).value();
  const auto refused = [&](const NcclGroup& group, const char* words) {
    const absl::Status status = OpenNccl(fake.library(), group, 7, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  refused({.unique_id = id, .position = 2, .size = 2}, "position 2 of 2");
  refused({.unique_id = id, .position = 0, .size = 0}, "position 0 of 0");
  refused({.unique_id = "short"}, "an NCCL id of 5 bytes; 128 are needed");
  FakeNccl failing({.failing_call = "ncclGetUniqueId"});
  EXPECT_THAT(NewNcclId(*failing.library()).status().message(), HasSubstr("ncclGetUniqueId"));
}

}  // namespace
}  // namespace esteira
