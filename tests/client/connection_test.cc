// Connection and FollowJob against a server of the test's own.
#include "client/connection.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/commands.h"
#include "common/rpc/server.h"
#include "esteira/v1/cluster.grpc.pb.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Knows job-1 alone, whose events are what the test says.
class FakeJobs : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* job) override {
    if (request->id() != "job-1") return NotFound();
    job->set_id("job-1");
    return grpc::Status::OK;
  }
  // Never answers by itself.
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest*,
                         v1::Job*) override {
    release.WaitForNotification();
    return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::JobEvent>* writer) override {
    if (request->id() != "job-1") return NotFound();
    for (const v1::JobEvent& event : events) {
      if (!writer->Write(event)) return grpc::Status::CANCELLED;
    }
    return end;
  }

  std::vector<v1::JobEvent> events;
  grpc::Status end;
  absl::Notification release;

 private:
  static grpc::Status NotFound() { return {grpc::StatusCode::NOT_FOUND, "there is no such job"}; }
};

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RpcServer::Start({}, {{"esteira.v1.JobService", &jobs_}});
    ASSERT_TRUE(server.ok()) << server.status();
    rpc_ = *std::move(server);
    rpc_->SetServing(true);
    address_ = absl::StrCat("127.0.0.1:", rpc_->port());
  }
  void TearDown() override { rpc_->Shutdown(absl::ZeroDuration()); }

  void AddState(v1::JobState state, const std::string& message = "") {
    v1::JobEvent& event = jobs_.events.emplace_back();
    event.mutable_job()->set_state(state);
    event.mutable_job()->set_message(message);
    event.mutable_job()->mutable_spec()->mutable_training()->set_steps(2);
  }
  void AddStep(int64_t step) { jobs_.events.emplace_back().mutable_step()->set_step(step); }

  // What FollowJob prints on standard output.
  std::string Follow(const std::string& job, ExitCode expected) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const ExitCode code = FollowJob(address_, job, ProgressTo::kStdout);
    errors_ = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, expected) << errors_;
    return testing::internal::GetCapturedStdout();
  }

  FakeJobs jobs_;
  std::unique_ptr<RpcServer> rpc_;
  std::string address_;
  std::string errors_;
};

TEST_F(ConnectionTest, AnswersAndErrorsComeThrough) {
  const Connection connection(address_);
  v1::Job job;
  ASSERT_TRUE(connection.Get("job-1", job).ok());
  EXPECT_EQ(job.id(), "job-1");
  const absl::Status missing = connection.Get("job-2", job);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "there is no such job");
  std::string state;
  ASSERT_TRUE(connection.Health("esteira.v1.JobService", state).ok());
  EXPECT_EQ(state, "SERVING");
}

TEST_F(ConnectionTest, AServerThatIsNotThereIsNamed) {
  const Connection connection("127.0.0.1:1");
  v1::Job job;
  const absl::Status status = connection.Get("job-1", job);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST_F(ConnectionTest, ACallThatIsNotAnsweredEndsAtItsDeadline) {
  const Connection connection(address_, absl::Milliseconds(50));
  v1::Job job;
  const absl::Status status = connection.Cancel("job-1", job);
  jobs_.release.Notify();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ConnectionTest, AStreamEndsWhenTheReaderHasEnough) {
  for (int step = 1; step <= 3; ++step) AddStep(step);
  jobs_.end = {grpc::StatusCode::DATA_LOSS, "the disk is damaged"};
  const Connection connection(address_);
  std::vector<int64_t> seen;
  const auto read = [&](size_t enough) {
    seen.clear();
    return connection.Watch("job-1", absl::InfiniteFuture(), [&](const v1::JobEvent& event) {
      seen.push_back(event.step().step());
      return seen.size() < enough;
    });
  };
  EXPECT_TRUE(read(2).ok());
  EXPECT_THAT(seen, ElementsAre(1, 2));
  EXPECT_EQ(read(9).code(), absl::StatusCode::kDataLoss) << "everything came, then an error";
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
}

TEST_F(ConnectionTest, FollowingShowsEachStateOnceAndTheLastStep) {
  AddState(v1::QUEUED, "waits for 2 workers");
  AddState(v1::QUEUED, "waits for 2 workers");
  AddState(v1::RUNNING, "training");
  AddStep(1);
  AddStep(2);
  AddState(v1::SUCCEEDED);
  const std::string out = Follow("job-1", kExitOk);
  EXPECT_THAT(out, HasSubstr("QUEUED: waits for 2 workers\nRUNNING: training\n"));
  EXPECT_THAT(out, HasSubstr("2/2"));
  EXPECT_THAT(out, HasSubstr("SUCCEEDED\n"));
  EXPECT_THAT(out, Not(HasSubstr("\x1b"))) << "this is no terminal";
}

TEST_F(ConnectionTest, FollowingTellsHowItEnded) {
  AddState(v1::FAILED, "rank 1 was killed");
  EXPECT_THAT(Follow("job-1", kExitJobFailed), HasSubstr("FAILED: rank 1 was killed"));
  Follow("job-2", kExitNotFound);
  EXPECT_THAT(errors_, HasSubstr("there is no such job"));
  address_ = "127.0.0.1:1";
  Follow("job-1", kExitNotConnected);
  address_ = "nonsense";
  Follow("job-1", kExitUsage);
}

TEST_F(ConnectionTest, AStreamThatBreaksIsNoSuccess) {
  AddState(v1::RUNNING, "training");
  jobs_.end = {grpc::StatusCode::UNAVAILABLE, "the coordinator stops"};
  Follow("job-1", kExitNotConnected);
}

}  // namespace
}  // namespace esteira
