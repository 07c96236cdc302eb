#include "worker/checkpoint/background_saver.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "common/checkpoint/checkpoint_folder.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/worker/checkpoint/group.h"
#include "worker/checkpoint/state_source.h"

namespace esteira {
namespace {

// A file system whose files cannot be created before it is opened.
class GatedFileSystem : public FakeFileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
    return FakeFileSystem::Create(path);
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

class BackgroundSaverTest : public testing::Test {
 protected:
  BackgroundSaverTest() : job_(SmallJob(Architecture::kLlama, false, Precision::kFp32)) {
    int64_t total = 0;
    for (const UnitSpec& unit : MakeUnits(job_.model)) total += unit.flat_elements;
    memory_.assign(static_cast<size_t>(total * 3), 0);
    float* at = memory_.data();
    int index = 0;
    for (const UnitSpec& unit : MakeUnits(job_.model)) {
      const auto size = static_cast<size_t>(unit.flat_elements);
      states_.push_back(
          {index++, 0, unit.flat_elements, {at, size}, {at + size, size}, {at + 2 * size, size}});
      at += 3 * size;
    }
    copy_.resize(static_cast<size_t>(BytesOfStates(states_)));
  }

  // Every element becomes `value`.
  void Set(float value) { std::fill(memory_.begin(), memory_.end(), value); }

  // The one value that all tensors of a checkpoint hold.
  float SavedValue(FileSystem& files, const std::string& folder) {
    CHECK(VerifyCheckpoint(files, folder).ok());
    const auto tensors = TensorFolder::OpenOptimizer(files, folder);
    CHECK(tensors.ok());
    std::optional<float> value;
    for (const auto& [name, location] : tensors->tensors()) {
      std::vector<float> values(static_cast<size_t>(location.entry.elements()));
      CHECK(tensors->ReadFp32(location, values).ok());
      for (const float one : values) {
        if (!value) value = one;
        EXPECT_EQ(one, *value) << name;
      }
    }
    return *value;
  }

  JobSpec job_;
  std::vector<float> memory_;
  std::vector<UnitState> states_;
  std::vector<std::byte> copy_;
  std::vector<std::unique_ptr<Transport>> transports_ = MakeInprocTransports(1);
  std::vector<SaveReport> reports_;
};

TEST_F(BackgroundSaverTest, WritesWhatWasThereWhenItStarted) {
  GatedFileSystem files;
  CheckpointWriter writer(job_, Layout{}, {}, 0, absl::Seconds(30), files, *transports_[0]);
  BackgroundSaver saver(writer, [&](const SaveReport& report) { reports_.push_back(report); });
  Set(1);
  EXPECT_TRUE(saver.Start(5, 5, states_, copy_).ok());
  Set(2);  // training goes on while nothing is written yet
  EXPECT_FALSE(files.Exists("/ckpt/step-00000005"));
  files.Open();
  EXPECT_TRUE(saver.Wait().ok());
  EXPECT_EQ(SavedValue(files, "/ckpt/step-00000005"), 1);
  EXPECT_TRUE(saver.Start(6, 6, states_, copy_).ok());
  Set(3);
  EXPECT_TRUE(saver.SaveNow(7, 7, states_).ok());  // waits for the one in flight
  EXPECT_EQ(SavedValue(files, "/ckpt/step-00000006"), 2);
  EXPECT_EQ(SavedValue(files, "/ckpt/step-00000007"), 3);
  ASSERT_EQ(reports_.size(), 3u);
  for (const SaveReport& report : reports_) {
    EXPECT_TRUE(report.result.ok());
    EXPECT_GE(report.duration, report.stall);
    EXPECT_GE(report.stall, absl::ZeroDuration());
  }
  EXPECT_EQ(reports_[2].stall, reports_[2].duration);
}

TEST_F(BackgroundSaverTest, AFailureIsToldAndTheNextSaveIsMade) {
  FakeFileSystem disk;
  FaultyFileSystem files(disk);
  CheckpointWriter writer(job_, Layout{}, {}, 0, absl::Seconds(30), files, *transports_[0]);
  BackgroundSaver saver(writer, [&](const SaveReport& report) { reports_.push_back(report); });
  Set(1);
  files.FailAfterBytes(1000);
  EXPECT_TRUE(saver.Start(5, 5, states_, copy_).ok());
  EXPECT_EQ(saver.Start(6, 6, states_, copy_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(saver.Wait().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(saver.Wait().ok());
  EXPECT_THAT(*disk.List("/ckpt"), testing::ElementsAre());
  files.FailAfterBytes(1 << 30);
  EXPECT_TRUE(saver.Start(7, 7, states_, copy_).ok());
  EXPECT_TRUE(saver.Wait().ok());
  EXPECT_EQ(SavedValue(disk, "/ckpt/step-00000007"), 1);
  EXPECT_EQ(reports_.size(), 3u);
}

TEST_F(BackgroundSaverTest, ItsEndWaitsForTheSaveInFlight) {
  FakeFileSystem files;
  CheckpointWriter writer(job_, Layout{}, {}, 0, absl::Seconds(30), files, *transports_[0]);
  {
    BackgroundSaver saver(writer, [&](const SaveReport& report) { reports_.push_back(report); });
    EXPECT_TRUE(saver.Start(5, 5, states_, copy_).ok());
  }
  EXPECT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(files.Exists("/ckpt/step-00000005"));
}

}  // namespace
}  // namespace esteira
