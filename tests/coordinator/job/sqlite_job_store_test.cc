#include "coordinator/job/sqlite_job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

class SqliteJobStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/jobs.sqlite";
  }

  std::unique_ptr<SqliteJobStore> Open() {
    auto store = SqliteJobStore::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::string folder_;
  std::string path_;
};

Job MakeJob(int64_t sequence) {
  Job job = MakeQueuedJob(sequence, kNow);
  job.name = "tiny";
  job.spec_bytes = std::string("\0spec\xff", 6);
  job.request_id = absl::StrCat("request-", sequence);
  job.priority = -3;
  return job;
}

TEST_F(SqliteJobStoreTest, EverythingIsThereAfterReopening) {
  {
    const auto store = Open();
    Job job = MakeJob(1);
    ASSERT_TRUE(store->Commit({InsertJob{job}}).ok());
    const JobTransition planning = Transition(job, JobState::kPlanning, "WORKERS_IDLE", "m", kNow);
    job.epoch = 4;
    job.loss = std::numeric_limits<double>::quiet_NaN();
    job.workers = {"b", "a"};
    job.plan = PlanSummary{};
    job.plan->layout.boundaries = {0, 2, 5};
    job.plan->digest = "d";
    job.peak_flops = 1e12;
    job.failures = {{"b", 0, 4, 7, "first", false, kNow}, {"a", 1, 4, 7, "echo", true, kNow}};
    ASSERT_TRUE(store
                    ->Commit({AppendTransition{job.id, planning}, UpdateJob{job},
                              AppendCheckpoint{job.id, {"/c/1", 5, 99, kNow}}})
                    .ok());
  }
  const auto store = Open();
  const auto job = store->Get("job-1");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state, JobState::kPlanning);
  EXPECT_EQ(job->spec_bytes, std::string("\0spec\xff", 6));
  EXPECT_EQ(job->priority, -3);
  EXPECT_EQ(job->epoch, 4);
  EXPECT_TRUE(std::isnan(job->loss));
  EXPECT_EQ(job->workers, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(job->plan->layout.boundaries, (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(job->peak_flops, 1e12);
  ASSERT_THAT(job->transitions, SizeIs(2));
  EXPECT_EQ(job->transitions[1].reason, "WORKERS_IDLE");
  EXPECT_EQ(job->transitions[1].time, kNow);
  ASSERT_THAT(job->failures, SizeIs(2));
  EXPECT_EQ(job->failures[0].cause, "first");
  EXPECT_TRUE(job->failures[1].consequence);
  const auto checkpoints = store->ListCheckpoints("job-1");
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_THAT(*checkpoints, SizeIs(1));
  EXPECT_EQ(checkpoints->front().bytes, 99);
  EXPECT_EQ(*store->LastSequence(), 1);
}

TEST_F(SqliteJobStoreTest, ListsInPagesNewestFirst) {
  const auto store = Open();
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(store->Commit({InsertJob{MakeJob(i)}}).ok());
  std::vector<std::string> seen;
  std::string token;
  do {
    const auto page = store->List(2, token);
    ASSERT_TRUE(page.ok());
    for (const Job& job : page->jobs) seen.push_back(job.id);
    token = page->next_page_token;
  } while (!token.empty());
  EXPECT_THAT(seen, testing::ElementsAre("job-5", "job-4", "job-3", "job-2", "job-1"));
  EXPECT_EQ(store->List(2, "x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SqliteJobStoreTest, FindsByRequestAndByActivity) {
  const auto store = Open();
  Job done = MakeJob(1);
  ASSERT_TRUE(store->Commit({InsertJob{done}, InsertJob{MakeJob(2)}}).ok());
  Transition(done, JobState::kCancelled, "R", "m", kNow);
  ASSERT_TRUE(store->Commit({UpdateJob{done}}).ok());
  EXPECT_EQ((*store->FindRequest("request-2"))->id, "job-2");
  EXPECT_FALSE(store->FindRequest("none")->has_value());
  EXPECT_FALSE(store->FindRequest("")->has_value());
  const auto active = store->ListActive();
  ASSERT_TRUE(active.ok());
  ASSERT_THAT(*active, SizeIs(1));
  EXPECT_EQ(active->front().id, "job-2");
  EXPECT_EQ(store->CountByState()->at("CANCELLED"), 1);
  EXPECT_EQ(store->Get("job-9").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SqliteJobStoreTest, ACommitIsAllOrNothing) {
  const auto store = Open();
  ASSERT_TRUE(store->Commit({InsertJob{MakeJob(1)}}).ok());
  // The second insert clashes with the first.
  EXPECT_FALSE(store->Commit({InsertJob{MakeJob(2)}, InsertJob{MakeJob(1)}}).ok());
  EXPECT_EQ(store->Get("job-2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->Commit({InsertJob{MakeJob(2)}}).ok()) << "the store works on";
}

TEST_F(SqliteJobStoreTest, StepsComeInOrderAndEachOnce) {
  const auto store = Open();
  for (const int64_t step : {3, 1, 2, 2}) {
    StepRecord record;
    record.step = step;
    ASSERT_TRUE(store->Commit({AppendStep{"job-1", record}}).ok());
  }
  const auto steps = store->ListSteps("job-1", 2, 10);
  ASSERT_TRUE(steps.ok());
  ASSERT_THAT(*steps, SizeIs(2));
  EXPECT_EQ((*steps)[0].step, 2);
  EXPECT_EQ((*steps)[1].step, 3);
  EXPECT_THAT(*store->ListSteps("job-1", 1, 2), SizeIs(2));
  EXPECT_THAT(*store->ListSteps("job-2", 1, 10), IsEmpty());
}

TEST_F(SqliteJobStoreTest, RefusesADamagedFile) {
  { std::ofstream(path_) << std::string(8192, 'x'); }
  const absl::Status status = SqliteJobStore::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
}

TEST_F(SqliteJobStoreTest, RefusesAFileOfALaterRelease) {
  Open();
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &handle), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(handle, "PRAGMA user_version = 2", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(handle);
  EXPECT_EQ(SqliteJobStore::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SqliteJobStoreTest, AnotherWritersLockIsUnavailable) {
  const auto store = Open();
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &handle), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(handle, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const absl::Status status = store->Commit({InsertJob{MakeJob(1)}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  sqlite3_close(handle);
  EXPECT_TRUE(store->Commit({InsertJob{MakeJob(1)}}).ok());
}

TEST_F(SqliteJobStoreTest, AFullDiskChangesNothingAndIsSaid) {
  const auto store = Open();
  ASSERT_TRUE(store->Commit({InsertJob{MakeJob(1)}}).ok());
  // No file of this process may grow any more.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{64 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  Job large = MakeJob(2);
  large.spec_bytes.assign(1 << 20, 'x');
  const absl::Status status = store->Commit({InsertJob{large}});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(store->Get("job-2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->Commit({InsertJob{MakeJob(2)}}).ok()) << "there is space again";
}

}  // namespace
}  // namespace esteira
