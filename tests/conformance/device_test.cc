// Device, Buffer, Stream and Event of every backend.
#include "worker/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/device/cpu/cpu_event.h"

namespace esteira {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct DeviceBackend {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

std::vector<DeviceBackend> DeviceBackends() {
  if (const auto cuda = MakeCudaDevice(0); !cuda.ok()) {
    std::printf("skipped: CUDA: %s\n", std::string(cuda.status().message()).c_str());
  }
  return {{"Cpu", [] { return MakeCpuDevice({}); }}};
}

// Holds a stream's task back until it is opened.
class Gate {
 public:
  void Open() { promise_.set_value(); }
  std::function<absl::Status()> Task() {
    return [future = future_] {
      future.wait();
      return absl::OkStatus();
    };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

class DeviceTest : public testing::TestWithParam<DeviceBackend> {
 protected:
  std::function<absl::Status()> Note(int value) {
    return [this, value] {
      notes_.push_back(value);
      return absl::OkStatus();
    };
  }

  std::vector<int> notes_;  // written by one stream at a time
  std::unique_ptr<Device> device_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Backends, DeviceTest, testing::ValuesIn(DeviceBackends()),
                         [](const auto& test) { return test.param.name; });

TEST_P(DeviceTest, BuffersAreZeroFilledAndAligned) {
  for (const int64_t bytes : {1, 63, 64, 4097, 5 << 20}) {
    for (int round = 0; round < 2; ++round) {
      auto buffer = device_->Allocate(bytes, MemoryKind::kSlots);
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      EXPECT_EQ(buffer->bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
      int64_t set = 0;
      for (int64_t i = 0; i < bytes; ++i) set += buffer->data()[i] != std::byte{0};
      EXPECT_EQ(set, 0);
      std::memset(buffer->data(), 0xff, static_cast<size_t>(bytes));
    }
  }
}

TEST_P(DeviceTest, AnEmptyBufferHasAnAddressAndCountsNothing) {
  const auto buffer = device_->Allocate(0, MemoryKind::kOther);
  ASSERT_TRUE(buffer.ok());
  EXPECT_NE(buffer->data(), nullptr);
  EXPECT_EQ(buffer->bytes(), 0);
  EXPECT_EQ(device_->bytes_in_use(MemoryKind::kOther), 0);
}

TEST_P(DeviceTest, CountsMemoryByKind) {
  {
    Buffer first = *device_->Allocate(100, MemoryKind::kParameters);
    Buffer second = *device_->Allocate(28, MemoryKind::kParameters);
    const Buffer other = *device_->Allocate(7, MemoryKind::kGradients);
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kParameters), 128);
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kGradients), 7);
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kOptimizer), 0);
    second = Buffer();
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kParameters), 100);
    Buffer moved = std::move(first);
    EXPECT_EQ(moved.bytes(), 100);
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kParameters), 100);
    moved = *device_->Allocate(1, MemoryKind::kParameters);
    EXPECT_EQ(device_->bytes_in_use(MemoryKind::kParameters), 1);
  }
  EXPECT_EQ(device_->bytes_in_use(MemoryKind::kParameters), 0);
  EXPECT_EQ(device_->bytes_in_use(MemoryKind::kGradients), 0);
  EXPECT_EQ(device_->peak_bytes(MemoryKind::kParameters), 128);
  EXPECT_EQ(device_->peak_bytes(MemoryKind::kOptimizer), 0);
}

TEST_P(DeviceTest, RefusesWhatDoesNotFitAndSaysWhatIsInUse) {
  const Buffer held = *device_->Allocate(1000, MemoryKind::kOptimizer);
  const int64_t bytes = device_->total_memory_bytes() - 999;
  const auto refused = device_->Allocate(bytes, MemoryKind::kWorkspace);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.status().message());
  EXPECT_THAT(message, HasSubstr(std::to_string(bytes) + " bytes for workspace"));
  EXPECT_THAT(message, HasSubstr("optimizer states 1000"));
  EXPECT_EQ(device_->bytes_in_use(MemoryKind::kWorkspace), 0);
  EXPECT_EQ(device_->peak_bytes(MemoryKind::kWorkspace), 0);
  EXPECT_TRUE(device_->Allocate(1000, MemoryKind::kWorkspace).ok());
}

TEST_P(DeviceTest, RefusesHugeAndNegativeSizes) {
  EXPECT_EQ(device_->Allocate(INT64_MAX, MemoryKind::kOther).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->Allocate(-1, MemoryKind::kOther).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceTest, AStreamRunsItsTasksInOrderBehindTheCaller) {
  Gate gate;
  const auto stream = device_->NewStream("ordered");
  stream->Enqueue(gate.Task());
  for (int i = 0; i < 1000; ++i) stream->Enqueue(Note(i));
  gate.Open();
  ASSERT_TRUE(stream->Synchronize().ok());
  ASSERT_EQ(notes_.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(notes_[static_cast<size_t>(i)], i);
  EXPECT_TRUE(stream->Synchronize().ok()) << "an idle stream";
}

TEST_P(DeviceTest, AnEventIsReachedWhenTheWorkBeforeItIsDone) {
  Gate gate;
  const auto event = device_->NewEvent();
  EXPECT_TRUE(event->Query()) << "never recorded";
  event->Wait();
  const auto stream = device_->NewStream("events");
  stream->Enqueue(gate.Task());
  stream->Record(*event);
  EXPECT_FALSE(event->Query());
  gate.Open();
  event->Wait();
  EXPECT_TRUE(event->Query());
}

TEST_P(DeviceTest, EventTimesAreInTheOrderOfTheStream) {
  const auto first = device_->NewEvent();
  const auto second = device_->NewEvent();
  const auto stream = device_->NewStream("times");
  stream->Record(*first);
  stream->Enqueue(Note(1));
  stream->Record(*second);
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_GT(first->time(), absl::UnixEpoch());
  EXPECT_LE(first->time(), second->time());
}

TEST_P(DeviceTest, AStreamWaitsForAnEventOfAnother) {
  Gate gate;
  const auto event = device_->NewEvent();
  const auto producer = device_->NewStream("producer");
  const auto consumer = device_->NewStream("consumer");
  producer->Enqueue(gate.Task());
  producer->Enqueue(Note(1));
  producer->Record(*event);
  consumer->Wait(*event);
  consumer->Enqueue(Note(2));
  const auto done = device_->NewEvent();
  consumer->Record(*done);
  EXPECT_FALSE(done->Query());
  gate.Open();
  ASSERT_TRUE(consumer->Synchronize().ok());
  EXPECT_THAT(notes_, ElementsAre(1, 2));
}

// A waiter waits for the event as it was recorded when it began to wait.
TEST_P(DeviceTest, RecordingAgainDoesNotDelayEarlierWaiters) {
  Gate gate;
  const auto event = device_->NewEvent();
  const auto producer = device_->NewStream("producer");
  const auto consumer = device_->NewStream("consumer");
  Gate first;
  producer->Enqueue(first.Task());
  producer->Record(*event);
  consumer->Wait(*event);
  producer->Enqueue(gate.Task());
  producer->Record(*event);
  first.Open();
  ASSERT_TRUE(consumer->Synchronize().ok()) << "waits for the first record only";
  EXPECT_FALSE(event->Query()) << "the second is not reached yet";
  gate.Open();
  event->Wait();
  ASSERT_TRUE(producer->Synchronize().ok());
}

TEST_P(DeviceTest, ALaterRecordOnAnotherStreamDoesNotReleaseEarlierWaiters) {
  Gate gate;
  const auto event = device_->NewEvent();
  const auto done = device_->NewEvent();
  const auto slow = device_->NewStream("slow");
  const auto fast = device_->NewStream("fast");
  const auto consumer = device_->NewStream("consumer");
  slow->Enqueue(gate.Task());
  slow->Record(*event);
  consumer->Wait(*event);
  consumer->Record(*done);
  fast->Record(*event);
  ASSERT_TRUE(fast->Synchronize().ok());
  EXPECT_TRUE(event->Query()) << "as recorded last";
  EXPECT_FALSE(done->Query()) << "the consumer waits for the slow stream";
  gate.Open();
  ASSERT_TRUE(consumer->Synchronize().ok());
}

TEST_P(DeviceTest, TheFirstFailureSticksAndLaterWorkIsSkipped) {
  const auto stream = device_->NewStream("failing");
  const auto event = device_->NewEvent();
  stream->Enqueue(Note(1));
  stream->Enqueue([] { return absl::DataLossError("first"); });
  stream->Enqueue(Note(2));
  stream->Enqueue([] { return absl::InternalError("second"); });
  stream->Record(*event);
  event->Wait();
  EXPECT_EQ(stream->status(), absl::DataLossError("first"));
  EXPECT_EQ(stream->Synchronize(), absl::DataLossError("first"));
  stream->Enqueue(Note(3));
  stream->Record(*event);
  event->Wait();
  EXPECT_EQ(stream->Synchronize(), absl::DataLossError("first"));
  EXPECT_THAT(notes_, ElementsAre(1));
}

TEST_P(DeviceTest, AFailedStreamReleasesThoseThatWaitForIt) {
  const auto failing = device_->NewStream("failing");
  const auto consumer = device_->NewStream("consumer");
  const auto event = device_->NewEvent();
  failing->Enqueue([] { return absl::InternalError("broken"); });
  failing->Record(*event);
  consumer->Wait(*event);
  consumer->Enqueue(Note(1));
  EXPECT_TRUE(consumer->Synchronize().ok());
  EXPECT_THAT(notes_, ElementsAre(1));
}

TEST_P(DeviceTest, DestructionRunsWhatIsQueued) {
  Gate gate;
  {
    const auto stream = device_->NewStream("drained");
    stream->Enqueue(gate.Task());
    for (int i = 0; i < 100; ++i) stream->Enqueue(Note(i));
    gate.Open();
  }
  EXPECT_EQ(notes_.size(), 100u);
}

TEST_P(DeviceTest, AnEventMayBeDestroyedBeforeItIsReached) {
  Gate gate;
  const auto stream = device_->NewStream("stream");
  const auto other = device_->NewStream("other");
  stream->Enqueue(gate.Task());
  auto event = device_->NewEvent();
  stream->Record(*event);
  other->Wait(*event);
  event.reset();
  other->Enqueue(Note(1));
  gate.Open();
  ASSERT_TRUE(other->Synchronize().ok());
  EXPECT_THAT(notes_, ElementsAre(1));
}

TEST_P(DeviceTest, StatusAndEventsMayBeReadFromAnyThread) {
  const auto stream = device_->NewStream("busy");
  const auto event = device_->NewEvent();
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) {
      (void)stream->status();
      (void)event->Query();
    }
  });
  for (int i = 0; i < 2000; ++i) {
    stream->Enqueue(Note(i));
    stream->Record(*event);
  }
  EXPECT_TRUE(stream->Synchronize().ok());
  stop = true;
  reader.join();
  EXPECT_EQ(notes_.size(), 2000u);
}

TEST(EventState, AGenerationIsReachedByItsOwnEndOnly) {
  EventState state;
  const uint64_t first = state.BeginGeneration();
  const uint64_t second = state.BeginGeneration();
  state.EndGeneration(second);
  EXPECT_TRUE(state.Reached(second));
  EXPECT_FALSE(state.Reached(first));
  state.EndGeneration(first);
  EXPECT_TRUE(state.Reached(first));
}

TEST(NoCudaDevice, SaysWhatToDo) {
  const auto cuda = MakeCudaDevice(0);
  if (cuda.ok()) GTEST_SKIP() << "built with CUDA";
  EXPECT_EQ(cuda.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(cuda.status().message()), HasSubstr("--device cpu"));
}

}  // namespace
}  // namespace esteira
