#include "coordinator/job/data_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/rpc/json.h"
#include "coordinator/job/job_messages.h"
#include "coordinator/job/log_reader.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

class DataDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    auto directory = DataDirectory::Open(root_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
  }

  void Log(int rank, int second, const std::string& text) {
    ASSERT_TRUE(
        directory_
            ->AppendLog("job-1", rank, absl::StrCat("w", rank), kNow + absl::Seconds(second), text)
            .ok());
  }

  std::vector<std::string> Read(LogReader& reader) {
    std::vector<std::string> lines;
    while (true) {
      const auto entry = reader.Next();
      EXPECT_TRUE(entry.ok()) << entry.status();
      if (!entry.ok() || !entry->has_value()) return lines;
      lines.push_back(absl::StrCat((*entry)->rank, ":", (*entry)->text));
    }
  }

  LogReader Reader(std::optional<int> rank, int64_t tail) {
    return LogReader(directory_->LogFolder("job-1"), rank, tail);
  }

  std::string root_;
  std::unique_ptr<DataDirectory> directory_;
};

TEST_F(DataDirectoryTest, ASecondCoordinatorIsRefusedUntilTheFirstIsGone) {
  EXPECT_EQ(DataDirectory::Open(root_).status().code(), absl::StatusCode::kFailedPrecondition);
  directory_.reset();
  EXPECT_TRUE(DataDirectory::Open(root_).ok());
}

TEST_F(DataDirectoryTest, StepsAndSamplesAreLines) {
  StepRecord record;
  record.loss = 0.1;
  record.gradient_norm = std::numeric_limits<double>::infinity();
  record.skip_cause = "rank 1, \"unit\" 2\n";
  record.memory = {{1, 2, 3, 4, 5}};
  record.step = 1;
  ASSERT_TRUE(directory_->AppendStep("job-1", record).ok());
  record.step = 2;
  ASSERT_TRUE(directory_->AppendStep("job-1", record).ok());
  const auto text = RealFileSystem().Read(directory_->JobFolder("job-1") + "/steps.jsonl");
  ASSERT_TRUE(text.ok());
  StepRecord first = record;
  first.step = 1;
  EXPECT_EQ(*text,
            ToJson(EncodeStepRecord(first)) + "\n" + ToJson(EncodeStepRecord(record)) + "\n");
  ASSERT_TRUE(directory_->AppendSampleIds("job-1", 2, 1, {4, 9}).ok());
  EXPECT_EQ(*RealFileSystem().Read(directory_->JobFolder("job-1") + "/samples.jsonl"),
            "{\"step\":2,\"epoch\":1,\"sample_ids\":[4,9]}\n");
}

TEST_F(DataDirectoryTest, LogsOfAllRanksAreMergedByTime) {
  Log(1, 1, "b");
  Log(0, 0, "a");
  Log(0, 3, "d\ne");
  Log(1, 2, "");
  LogReader reader = Reader(std::nullopt, 0);
  EXPECT_THAT(Read(reader), ElementsAre("0:a", "1:b", "1:", "0:d e"));
  EXPECT_THAT(Read(reader), IsEmpty());
  Log(2, 4, "a rank that was silent so far");
  EXPECT_THAT(Read(reader), ElementsAre("2:a rank that was silent so far"));
  LogReader one = Reader(1, 0);
  EXPECT_THAT(Read(one), ElementsAre("1:b", "1:"));
}

TEST_F(DataDirectoryTest, TailCountsOverAllRanks) {
  for (int i = 0; i < 7; ++i) Log(i % 2, i, absl::StrCat(i));
  LogReader three = Reader(std::nullopt, 3);
  EXPECT_THAT(Read(three), ElementsAre("0:4", "1:5", "0:6"));
  Log(1, 9, "new");
  EXPECT_THAT(Read(three), ElementsAre("1:new"));
  LogReader many = Reader(std::nullopt, 100);
  EXPECT_EQ(Read(many).size(), 8u);
  LogReader one = Reader(0, 1);
  EXPECT_THAT(Read(one), ElementsAre("0:6"));
}

TEST_F(DataDirectoryTest, ALineThatIsBeingWrittenWaits) {
  Log(0, 0, "whole");
  std::ofstream(directory_->LogFolder("job-1") + "/0.log", std::ios::app)
      << "1970-01-01T00:20:00.000000Z w0 ha";
  LogReader reader = Reader(std::nullopt, 0);
  EXPECT_THAT(Read(reader), ElementsAre("0:whole"));
  std::ofstream(directory_->LogFolder("job-1") + "/0.log", std::ios::app) << "lf\n";
  EXPECT_THAT(Read(reader), ElementsAre("0:half"));
}

TEST_F(DataDirectoryTest, LongLinesAndLongFiles) {
  Log(0, 0, std::string(1 << 20, 'x'));
  for (int i = 0; i < 3000; ++i) Log(0, 1, std::string(100, 'y'));
  LogReader all = Reader(std::nullopt, 0);
  const std::vector<std::string> lines = Read(all);
  ASSERT_EQ(lines.size(), 3001u);
  EXPECT_EQ(lines[0].size(), 2 + (64u << 10));
  LogReader tail = Reader(std::nullopt, 2999);
  EXPECT_EQ(Read(tail).size(), 2999u);
}

TEST_F(DataDirectoryTest, AFullLogSaysSoAndTakesNoMore) {
  directory_.reset();
  auto directory = DataDirectory::Open(root_, /*max_log_bytes=*/100);
  ASSERT_TRUE(directory.ok()) << directory.status();
  directory_ = *std::move(directory);
  for (int i = 0; i < 9; ++i) Log(0, i, std::string(20, 'x'));
  Log(1, 0, "another rank");
  LogReader reader = Reader(std::nullopt, 0);
  const std::string x = "0:" + std::string(20, 'x');
  EXPECT_THAT(Read(reader),
              ElementsAre(x, "1:another rank", x,
                          "0:no more lines of this rank are kept: its log has 100 bytes"));
}

TEST_F(DataDirectoryTest, AStepsFileKnowsItsLastStep) {
  EXPECT_EQ(*directory_->LastStep("job-1"), 0);
  StepRecord record;
  for (const int64_t step : {int64_t{1}, int64_t{9}, int64_t{1234567890123}}) {
    record.step = step;
    ASSERT_TRUE(directory_->AppendStep("job-1", record).ok());
    EXPECT_EQ(*directory_->LastStep("job-1"), step);
  }
  const std::string path = directory_->JobFolder("job-1") + "/steps.jsonl";
  const std::string whole = *RealFileSystem().Read(path);
  std::ofstream(path, std::ios::app) << "{\"step\":12345678901";
  EXPECT_EQ(*directory_->LastStep("job-1"), 1234567890123);
  EXPECT_EQ(*RealFileSystem().Read(path), whole) << "half a line is cut off";
  std::ofstream(path) << "{\"st";
  EXPECT_EQ(*directory_->LastStep("job-1"), 0);
  EXPECT_EQ(*RealFileSystem().Read(path), "");
  for (const char* text : {"\n", "mine\n", "{\"step\": }\n", "{\"step\": \"1\"}\n"}) {
    std::ofstream(path) << text;
    EXPECT_EQ(directory_->LastStep("job-1").status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

// The disk is full in the middle of a line.
TEST_F(DataDirectoryTest, HalfALineIsTakenBack) {
  StepRecord record;
  record.step = 1;
  ASSERT_TRUE(directory_->AppendStep("job-1", record).ok());
  const std::string path = directory_->JobFolder("job-1") + "/steps.jsonl";
  const std::string whole = *RealFileSystem().Read(path);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little = {whole.size() + 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const absl::Status status = directory_->AppendStep("job-1", record);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*RealFileSystem().Read(path), whole);
}

TEST_F(DataDirectoryTest, NoLogsIsNoError) {
  LogReader reader = Reader(std::nullopt, 5);
  EXPECT_THAT(Read(reader), IsEmpty());
}

}  // namespace
}  // namespace esteira
