#pragma once

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "coordinator/controller/controller.h"
#include "coordinator/job/sqlite_job_store.h"
#include "tests/fakes/fake_clock.h"

namespace esteira {

// Specs are "<name> <ranks>"; "bad" is refused; "trap <ranks>" can be checked but not planned for
// more than one worker; "large <ranks>" needs the memory of so many workers, although it may run on
// fewer.
class FakeJobPlanner : public JobPlanner {
 public:
  absl::StatusOr<JobNeeds> Check(const std::string& spec_bytes) override {
    const size_t space = spec_bytes.find(' ');
    if (space == std::string::npos) return absl::InvalidArgumentError("training.steps: missing");
    const std::string name = spec_bytes.substr(0, space);
    return JobNeeds{name, name == "large" ? 1 : Ranks(spec_bytes)};
  }
  absl::StatusOr<PlannedJob> Plan(const std::string& spec_bytes,
                                  const ClusterSpec& cluster) override {
    if (spec_bytes.rfind("trap", 0) == 0 && cluster.num_workers() > 1)
      return absl::InvalidArgumentError("no layout");
    if (cluster.num_workers() < Ranks(spec_bytes))
      return absl::ResourceExhaustedError("memory: it does not fit");
    PlannedJob planned;
    planned.summary.layout.stages = Ranks(spec_bytes);
    for (int rank = 0; rank < Ranks(spec_bytes); ++rank) planned.worker_of_rank.push_back(rank);
    planned.summary.digest = "digest";
    planned.plan_bytes = "plan";
    planned.flops_per_token = 10;
    return planned;
  }

 private:
  static int Ranks(const std::string& spec_bytes) {
    return std::stoi(spec_bytes.substr(spec_bytes.find(' ')));
  }
};

// Passes to a store, unless the disk is full.
class FullableStore : public JobStore {
 public:
  explicit FullableStore(JobStore& store) : store_(store) {}
  absl::Status Commit(const std::vector<JobWrite>& writes) override {
    if (full) {
      absl::MutexLock lock(&mutex_);
      ++refused_;
      return absl::ResourceExhaustedError("disk full");
    }
    return store_.Commit(writes);
  }
  // Returns when `count` more commits have been refused.
  void AwaitRefusals(int count) {
    absl::MutexLock lock(&mutex_);
    const int goal = refused_ + count;
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return refused_ >= goal; };
    mutex_.Await(absl::Condition(&reached));
  }
  absl::StatusOr<Job> Get(const std::string& id) override { return store_.Get(id); }
  absl::StatusOr<std::optional<Job>> FindRequest(const std::string& id) override {
    return store_.FindRequest(id);
  }
  absl::StatusOr<JobPage> List(int size, const std::string& token) override {
    return store_.List(size, token);
  }
  absl::StatusOr<std::vector<Job>> ListActive() override { return store_.ListActive(); }
  absl::StatusOr<std::map<std::string, int64_t>> CountByState() override {
    return store_.CountByState();
  }
  absl::StatusOr<int64_t> LastSequence() override { return store_.LastSequence(); }
  absl::StatusOr<std::vector<StepRecord>> ListSteps(const std::string& id, int64_t first,
                                                    int limit) override {
    return store_.ListSteps(id, first, limit);
  }
  absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& id) override {
    return store_.ListCheckpoints(id);
  }

  std::atomic<bool> full = false;

 private:
  JobStore& store_;
  absl::Mutex mutex_;
  int refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

class DiscardingSink : public LogSink {
 public:
  void Write(LogLevel, absl::string_view) override {}
};

// What a worker was told, as text: "configure job-1/1/0", "start job-1/1 A,B" (the addresses),
// "abort job-1/1", "ack 3", "closed ABORTED".
class FakeSession : public WorkerSession {
 public:
  void Send(const WorkerCommand& command) override {
    absl::MutexLock lock(&mutex_);
    std::visit([this](const auto& c) { Add(c); }, command);
  }
  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    told_.push_back("closed " + absl::StatusCodeToString(status.code()));
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(told_, {});
  }

 private:
  void Add(const RegisteredCommand&) { told_.push_back("registered"); }
  void Add(const ConfigureCommand& c) {
    told_.push_back(
        absl::StrCat("configure ", c.place.job_id, "/", c.place.epoch, "/", c.place.rank));
  }
  void Add(const StartCommand& c) {
    told_.push_back(
        absl::StrCat("start ", c.job_id, "/", c.epoch, " ", absl::StrJoin(c.addresses, ",")));
  }
  void Add(const AbortCommand& c) {
    told_.push_back(absl::StrCat("abort ", c.job_id, "/", c.epoch));
  }
  void Add(const RefusedCommand&) { told_.push_back("refused"); }
  void Add(const AcknowledgedCommand& c) { told_.push_back(absl::StrCat("ack ", c.sequence)); }

  absl::Mutex mutex_;
  std::vector<std::string> told_;
};

// A controller with a clock that stands still, a real store in a fresh folder, and workers that do
// what the test says.
class ControllerHarness : public testing::Test {
 protected:
  struct FakeWorker {
    std::shared_ptr<FakeSession> session;
    int64_t number = 0;
    uint64_t incarnation = 1;
    uint64_t sequence = 0;
  };

  void SetUp() override {
    root_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    StartCoordinator();
  }
  void TearDown() override { StopCoordinator(); }

  void StartCoordinator() {
    auto directory = DataDirectory::Open(root_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
    auto store = SqliteJobStore::Open(directory_->DatabasePath());
    ASSERT_TRUE(store.ok()) << store.status();
    sqlite_ = *std::move(store);
    store_ = std::make_unique<FullableStore>(*sqlite_);
    registry_ = std::make_unique<prometheus::Registry>();
    metrics_ = std::make_unique<CoordinatorMetrics>(*registry_, std::vector<std::string>{},
                                                    std::vector<std::string>{});
    controller_ = std::make_unique<Controller>(
        options_, Controller::Parts{clock_, *store_, *directory_, planner_, *metrics_},
        Logger(sink_));
    ASSERT_TRUE(controller_->Start().ok());
  }
  // As after kill -9: nothing is told to anyone.
  void StopCoordinator() {
    controller_.reset();
    workers_.clear();
    metrics_.reset();
    store_.reset();
    sqlite_.reset();
    directory_.reset();
  }

  absl::StatusOr<Job> Submit(const std::string& spec, int64_t priority = 0,
                             const std::string& request_id = "", bool validate_only = false) {
    absl::StatusOr<Job> result;
    absl::Notification done;
    controller_->Submit({spec, request_id, priority, validate_only}, [&](absl::StatusOr<Job> job) {
      result = std::move(job);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  absl::StatusOr<Job> Cancel(const std::string& id) {
    absl::StatusOr<Job> result;
    absl::Notification done;
    controller_->Cancel(id, [&](absl::StatusOr<Job> job) {
      result = std::move(job);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  // Everything that was posted before has been handled when it returns.
  std::map<std::string, WorkerState> Workers() {
    std::map<std::string, WorkerState> states;
    absl::Notification done;
    controller_->ListWorkers([&](const std::vector<WorkerRecord>& workers) {
      for (const WorkerRecord& worker : workers) states[worker.description.id] = worker.state();
      done.Notify();
    });
    done.WaitForNotification();
    return states;
  }
  void Advance(absl::Duration duration) {
    clock_.Advance(duration);
    Workers();
  }

  void Connect(const std::string& id, std::optional<Assignment> running = std::nullopt) {
    FakeWorker& worker = workers_[id];
    worker.session = std::make_shared<FakeSession>();
    worker.number = controller_->OpenSession(worker.session);
    RegisterMessage message;
    message.description.id = id;
    message.description.incarnation = worker.incarnation;
    message.running = running;
    controller_->Receive(worker.number, {id, worker.incarnation, 0, message}, [] {});
    Workers();
  }
  void Restart(const std::string& id) {
    ++workers_[id].incarnation;
    workers_[id].sequence = 0;
    Disconnect(id);
    Connect(id);
  }
  void Disconnect(const std::string& id) {
    controller_->CloseSession(workers_[id].number);
    Workers();
  }
  void Beat(const std::string& id) {
    controller_->Receive(workers_[id].number, {id, workers_[id].incarnation, 0, HeartbeatMessage{}},
                         [] {});
    Workers();
  }
  template <typename Body>
  void Report(const std::string& id, const Assignment& place, Body body) {
    FakeWorker& worker = workers_[id];
    controller_->Receive(
        worker.number,
        {id, worker.incarnation, ++worker.sequence, TrainerReport{place, std::move(body)}}, [] {});
    Workers();
  }
  std::vector<std::string> Told(const std::string& id) { return workers_[id].session->Take(); }

  // Workers a, b, ... that run job-1 in epoch 1.
  void RunJob(int ranks, const std::string& name = "job") {
    for (int rank = 0; rank < ranks; ++rank) Connect(Name(rank));
    ASSERT_TRUE(Submit(absl::StrCat(name, " ", ranks)).ok());
    for (int rank = 0; rank < ranks; ++rank) Report(Name(rank), Place(rank), Ready(rank));
    ASSERT_EQ(Find("job-1").state, JobState::kRunning);
    for (int rank = 0; rank < ranks; ++rank) Told(Name(rank));
  }
  static std::string Name(int rank) { return std::string(1, static_cast<char>('a' + rank)); }
  static Assignment Place(int rank) { return {"job-1", 1, rank}; }
  static ReadyReport Ready(int rank) { return {absl::StrCat("at-", rank), "v", 100}; }
  static StepPart Step(int64_t step, double loss = 1) {
    StepPart part;
    part.record.step = step;
    part.record.loss = loss;
    part.record.tokens = 8;
    part.record.step_seconds = 0.5;
    part.hash_part = uint64_t{0x8000000000000001};
    return part;
  }
  static ExitReport Exit(int code, int signal = 0) { return {code, signal, false, ""}; }

  double JobsGauge(const std::string& state) {
    Workers();  // gauges are set at the end of a turn: this is the one after
    for (const prometheus::MetricFamily& family : registry_->Collect()) {
      if (family.name != "esteira_jobs") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        if (metric.label.front().value == state) return metric.gauge.value;
      }
    }
    return -1;
  }

  Job Find(const std::string& id) {
    absl::StatusOr<Job> job = store_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  ControllerOptions options_;
  std::string root_;
  FakeClock clock_;
  FakeJobPlanner planner_;
  DiscardingSink sink_;
  std::unique_ptr<DataDirectory> directory_;
  std::unique_ptr<SqliteJobStore> sqlite_;
  std::unique_ptr<FullableStore> store_;
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<CoordinatorMetrics> metrics_;
  std::unique_ptr<Controller> controller_;
  std::map<std::string, FakeWorker> workers_;
};

}  // namespace esteira
