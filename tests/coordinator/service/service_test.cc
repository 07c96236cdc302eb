// The services over real gRPC on a free port, with workers that speak the session's protocol.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "coordinator/job/sqlite_job_store.h"
#include "coordinator/service/services.h"
#include "esteira/v1/cluster.grpc.pb.h"
#include "esteira/v1/worker.grpc.pb.h"
#include "tests/fakes/fake_clock.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Reads what it needs from the spec alone: a rank for each pipeline stage.
class StagePlanner : public JobPlanner {
 public:
  absl::StatusOr<JobNeeds> Check(const std::string& spec_bytes) override {
    v1::JobSpec spec;
    spec.ParseFromString(spec_bytes);
    if (spec.name().empty()) return absl::InvalidArgumentError("name: missing");
    return JobNeeds{spec.name(), static_cast<int>(spec.parallelism().pipeline_stages())};
  }
  absl::StatusOr<PlannedJob> Plan(const std::string& spec_bytes, const ClusterSpec&) override {
    PlannedJob planned;
    planned.summary.layout.stages = Check(spec_bytes)->min_workers;
    for (int rank = 0; rank < planned.summary.layout.stages; ++rank)
      planned.worker_of_rank.push_back(rank);
    planned.plan_bytes = v1::PlanProto().SerializeAsString();
    return planned;
  }
};

class DiscardingSink : public LogSink {
 public:
  void Write(LogLevel, absl::string_view) override {}
};

// A worker's end of a session, driven by the test.
class FakeWorker {
 public:
  FakeWorker(const std::shared_ptr<grpc::Channel>& channel, std::string id)
      : id_(std::move(id)), stub_(v1::WorkerService::NewStub(channel)) {
    SetDeadline(context_, kPatience);
    stream_ = stub_->Session(&context_);
  }
  ~FakeWorker() { context_.TryCancel(); }

  v1::WorkerMessage Envelope(bool report) {
    v1::WorkerMessage message;
    message.set_worker_id(id_);
    message.set_incarnation(1);
    if (report) message.set_sequence(++sequence_);
    return message;
  }
  bool Send(const v1::WorkerMessage& message) { return stream_->Write(message); }
  bool Register() {
    v1::WorkerMessage message = Envelope(false);
    message.mutable_register_()->set_host("host");
    message.mutable_register_()->set_flops_fp32(1);
    message.mutable_register_()->set_flops_bf16(2);
    message.mutable_register_()->set_memory_bytes_per_second(-3);  // no rate
    message.mutable_register_()->set_pass_seconds(4);
    return Send(message) && Expect().has_registered();
  }
  v1::WorkerMessage Report(const std::string& job, int64_t epoch, int rank) {
    v1::WorkerMessage message = Envelope(true);
    message.mutable_report()->set_job_id(job);
    message.mutable_report()->set_epoch(epoch);
    message.mutable_report()->set_rank(rank);
    return message;
  }
  // The next message but acknowledgements.
  v1::CoordinatorMessage Expect() {
    v1::CoordinatorMessage message;
    while (stream_->Read(&message) && message.has_acknowledged()) {
    }
    return message;
  }
  grpc::Status Finish() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::string id_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
  uint64_t sequence_ = 0;
};

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string root =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root);
    directory_ = *DataDirectory::Open(root);
    store_ = *SqliteJobStore::Open(directory_->DatabasePath());
    metrics_ = std::make_unique<CoordinatorMetrics>(registry_, std::vector<std::string>{},
                                                    std::vector<std::string>{});
    controller_ = std::make_unique<Controller>(
        ControllerOptions{}, Controller::Parts{clock_, *store_, *directory_, planner_, *metrics_},
        Logger(sink_));
    ASSERT_TRUE(controller_->Start().ok());
    services_ = {MakeJobService(*controller_, *store_, *directory_),
                 MakeClusterService(*controller_, "1"), MakeWorkerService(*controller_)};
    auto server = RpcServer::Start({}, {{"jobs", services_[0].get()},
                                        {"cluster", services_[1].get()},
                                        {"workers", services_[2].get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = MakeChannel(absl::StrCat(server_->host(), ":", server_->port()));
    jobs_ = v1::JobService::NewStub(channel_);
  }
  void TearDown() override {
    server_->Shutdown(absl::Milliseconds(200));
    controller_->Stop();
  }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    SetDeadline(*context, kPatience);
    return context;
  }
  grpc::Status Submit(const std::string& name, int stages, v1::Job& job) {
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name(name);
    request.mutable_spec()->mutable_parallelism()->set_pipeline_stages(stages);
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(Context().get(), request, &response);
    job = response.job();
    return status;
  }
  v1::Job Get(const std::string& id) {
    v1::GetJobRequest request;
    request.set_id(id);
    v1::Job job;
    EXPECT_TRUE(jobs_->GetJob(Context().get(), request, &job).ok());
    return job;
  }
  // A worker with job-1 running on it.
  std::unique_ptr<FakeWorker> RunJob() {
    auto worker = std::make_unique<FakeWorker>(channel_, "w");
    EXPECT_TRUE(worker->Register());
    v1::Job job;
    EXPECT_TRUE(Submit("tiny", 1, job).ok());
    const v1::CoordinatorMessage configure = worker->Expect();
    EXPECT_EQ(configure.configure().job_id(), "job-1");
    EXPECT_EQ(configure.configure().spec().name(), "tiny");
    v1::WorkerMessage ready = worker->Report("job-1", 1, 0);
    ready.mutable_report()->mutable_ready()->set_address("here");
    EXPECT_TRUE(worker->Send(ready));
    const v1::CoordinatorMessage start = worker->Expect();
    EXPECT_THAT(start.start().addresses(), ElementsAre("here"));
    return worker;
  }
  static void SendStep(FakeWorker& worker, int64_t step) {
    v1::WorkerMessage message = worker.Report("job-1", 1, 0);
    message.mutable_report()->mutable_step()->mutable_record()->set_step(step);
    message.mutable_report()->mutable_step()->mutable_record()->set_loss(1.0 /
                                                                         static_cast<double>(step));
    ASSERT_TRUE(worker.Send(message));
  }
  static void SendLog(FakeWorker& worker, const std::string& text) {
    v1::WorkerMessage message = worker.Report("job-1", 1, 0);
    message.mutable_report()->mutable_log()->set_text(text);
    ASSERT_TRUE(worker.Send(message));
  }
  static void SendExit(FakeWorker& worker) {
    v1::WorkerMessage message = worker.Report("job-1", 1, 0);
    message.mutable_report()->mutable_exited();
    ASSERT_TRUE(worker.Send(message));
  }

  FakeClock clock_;
  StagePlanner planner_;
  DiscardingSink sink_;
  prometheus::Registry registry_;
  std::unique_ptr<DataDirectory> directory_;
  std::unique_ptr<SqliteJobStore> store_;
  std::unique_ptr<CoordinatorMetrics> metrics_;
  std::unique_ptr<Controller> controller_;
  std::vector<std::shared_ptr<grpc::Service>> services_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

TEST_F(ServiceTest, WatchStepsAndLogsFollowAJobToItsEnd) {
  const auto worker = RunJob();
  v1::WatchJobRequest watch;
  watch.set_id("job-1");
  const auto watch_context = Context();
  const auto events = jobs_->WatchJob(watch_context.get(), watch);
  v1::JobEvent event;
  ASSERT_TRUE(events->Read(&event));
  EXPECT_EQ(event.job().state(), v1::RUNNING);

  v1::ReadLogsRequest read_logs;
  read_logs.set_id("job-1");
  read_logs.set_follow(true);
  const auto log_context = Context();
  const auto logs = jobs_->ReadLogs(log_context.get(), read_logs);
  v1::ReadStepsRequest read_steps;
  read_steps.set_id("job-1");
  read_steps.set_follow(true);
  const auto step_context = Context();
  const auto steps = jobs_->ReadSteps(step_context.get(), read_steps);

  SendLog(*worker, "one");
  for (int step = 1; step <= 3; ++step) SendStep(*worker, step);
  SendLog(*worker, "two");
  SendExit(*worker);

  std::vector<int64_t> seen;
  int64_t revision = event.revision();
  while (events->Read(&event)) {
    EXPECT_GT(event.revision(), revision);
    revision = event.revision();
    if (event.has_step()) seen.push_back(event.step().step());
  }
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
  EXPECT_EQ(event.job().state(), v1::SUCCEEDED) << "the last event is the end";
  EXPECT_TRUE(events->Finish().ok());

  v1::StepRecord record;
  seen.clear();
  while (steps->Read(&record)) seen.push_back(record.step());
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
  EXPECT_TRUE(steps->Finish().ok());

  v1::LogLine line;
  std::vector<std::string> lines;
  while (logs->Read(&line)) lines.push_back(line.text());
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  EXPECT_TRUE(logs->Finish().ok());
}

TEST_F(ServiceTest, UnknownJobsAndBadRequests) {
  v1::Job job;
  EXPECT_EQ(Submit("", 1, job).error_code(), grpc::INVALID_ARGUMENT);
  v1::SubmitJobResponse response;
  EXPECT_EQ(jobs_->SubmitJob(Context().get(), v1::SubmitJobRequest(), &response).error_code(),
            grpc::INVALID_ARGUMENT);
  for (const std::string& id :
       {std::string(), std::string("job-9"), std::string("../../etc"), std::string("\0'", 2)}) {
    v1::GetJobRequest get;
    get.set_id(id);
    EXPECT_EQ(jobs_->GetJob(Context().get(), get, &job).error_code(), grpc::NOT_FOUND);
    v1::CancelJobRequest cancel;
    cancel.set_id(id);
    EXPECT_EQ(jobs_->CancelJob(Context().get(), cancel, &job).error_code(), grpc::NOT_FOUND);
    v1::ReadLogsRequest logs;
    logs.set_id(id);
    logs.set_follow(true);
    const auto context = Context();
    EXPECT_EQ(jobs_->ReadLogs(context.get(), logs)->Finish().error_code(), grpc::NOT_FOUND);
    v1::WatchJobRequest watch;
    watch.set_id(id);
    const auto watch_context = Context();
    EXPECT_EQ(jobs_->WatchJob(watch_context.get(), watch)->Finish().error_code(), grpc::NOT_FOUND);
  }
  v1::ListJobsRequest list;
  v1::ListJobsResponse listed;
  list.set_page_size(-1);
  EXPECT_EQ(jobs_->ListJobs(Context().get(), list, &listed).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, MalformedSessionMessagesEndTheStreamAndNothingElse) {
  std::vector<v1::WorkerMessage> bad(4);
  bad[1].set_worker_id("x");
  bad[2].set_worker_id("x");
  bad[2].mutable_report()->set_job_id("job-1");
  bad[3].set_worker_id("x");
  bad[3].mutable_report()->mutable_step();
  for (const v1::WorkerMessage& message : bad) {
    FakeWorker worker(channel_, "x");
    worker.Send(message);
    worker.Expect();
    EXPECT_EQ(worker.Finish().error_code(), grpc::INVALID_ARGUMENT) << message.ShortDebugString();
  }
  FakeWorker stranger(channel_, "x");
  v1::WorkerMessage heartbeat = stranger.Envelope(false);
  heartbeat.mutable_heartbeat();
  stranger.Send(heartbeat);
  stranger.Expect();
  EXPECT_EQ(stranger.Finish().error_code(), grpc::FAILED_PRECONDITION);
  FakeWorker good(channel_, "x");
  EXPECT_TRUE(good.Register());
}

TEST_F(ServiceTest, CancelledStreamsAreForgotten) {
  v1::Job job;
  ASSERT_TRUE(Submit("tiny", 1, job).ok());
  v1::WatchJobRequest watch;
  watch.set_id("job-1");
  for (int i = 0; i < 20; ++i) {
    const auto context = Context();
    const auto events = jobs_->WatchJob(context.get(), watch);
    v1::JobEvent event;
    if (i % 2 == 0) {
      ASSERT_TRUE(events->Read(&event));
    }
    context->TryCancel();
    EXPECT_EQ(events->Finish().error_code(), grpc::CANCELLED);
  }
  FakeWorker worker(channel_, "w");
  ASSERT_TRUE(worker.Register());
  worker.Cancel();
}

TEST_F(ServiceTest, ASlowWatcherMissesNothing) {
  const auto worker = RunJob();
  v1::WatchJobRequest watch;
  watch.set_id("job-1");
  const auto context = Context();
  const auto events = jobs_->WatchJob(context.get(), watch);
  v1::JobEvent event;
  ASSERT_TRUE(events->Read(&event));
  constexpr int kSteps = 1000;
  for (int step = 1; step <= kSteps; ++step) SendStep(*worker, step);
  SendExit(*worker);
  // Reads only now.
  int steps = 0;
  while (events->Read(&event)) steps += event.has_step() ? 1 : 0;
  EXPECT_EQ(steps, kSteps);
}

TEST_F(ServiceTest, ListsWorkersAndJobsInPages) {
  FakeWorker worker(channel_, "w");
  ASSERT_TRUE(worker.Register());
  const auto cluster = v1::ClusterService::NewStub(channel_);
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(cluster->ListWorkers(Context().get(), v1::ListWorkersRequest(), &workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).state(), v1::IDLE);
  EXPECT_EQ(workers.workers(0).host(), "host");
  EXPECT_EQ(workers.workers(0).flops_fp32(), 1);
  EXPECT_EQ(workers.workers(0).flops_bf16(), 2);
  EXPECT_EQ(workers.workers(0).memory_bytes_per_second(), 0);
  EXPECT_EQ(workers.workers(0).pass_seconds(), 4);
  v1::Version version;
  ASSERT_TRUE(cluster->GetVersion(Context().get(), v1::GetVersionRequest(), &version).ok());
  EXPECT_EQ(version.version(), "1");
  v1::Job job;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit("tiny", 5, job).ok());
  v1::ListJobsRequest list;
  list.set_page_size(2);
  v1::ListJobsResponse page;
  ASSERT_TRUE(jobs_->ListJobs(Context().get(), list, &page).ok());
  EXPECT_EQ(page.jobs_size(), 2);
  list.set_page_token(page.next_page_token());
  ASSERT_TRUE(jobs_->ListJobs(Context().get(), list, &page).ok());
  EXPECT_EQ(page.jobs_size(), 1);
  EXPECT_EQ(page.next_page_token(), "");
}

TEST_F(ServiceTest, ALargeSpecIsKept) {
  v1::SubmitJobRequest request;
  request.mutable_spec()->set_name("large");
  request.mutable_spec()->mutable_parallelism()->set_pipeline_stages(1);
  for (int i = 0; i < 100000; ++i) {
    request.mutable_spec()->mutable_data()->add_train()->set_path(
        absl::StrCat("/data/part-", i, ".txt"));
  }
  v1::SubmitJobResponse response;
  ASSERT_TRUE(jobs_->SubmitJob(Context().get(), request, &response).ok());
  EXPECT_EQ(Get("job-1").spec().data().train_size(), 100000);
}

TEST_F(ServiceTest, ShutdownEndsOpenStreams) {
  const auto worker = RunJob();
  v1::WatchJobRequest watch;
  watch.set_id("job-1");
  const auto context = Context();
  const auto events = jobs_->WatchJob(context.get(), watch);
  v1::JobEvent event;
  ASSERT_TRUE(events->Read(&event));
  server_->Shutdown(absl::Milliseconds(10));
  EXPECT_FALSE(events->Read(&event));
  EXPECT_FALSE(events->Finish().ok());
}

}  // namespace
}  // namespace esteira
