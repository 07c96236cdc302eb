#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/job/job_messages.h"
#include "coordinator/service/job_streams.h"
#include "coordinator/service/services.h"
#include "coordinator/service/unary_call.h"
#include "esteira/v1/cluster.grpc.pb.h"

namespace esteira {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;
constexpr size_t kMaxRequestIdBytes = 256;

absl::StatusOr<SubmitRequest> DecodeSubmit(const v1::SubmitJobRequest& message) {
  if (!message.has_spec()) return absl::InvalidArgumentError("spec: missing");
  if (message.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: at most ", kMaxRequestIdBytes, " bytes"));
  }
  return SubmitRequest{message.spec().SerializeAsString(), message.request_id(), message.priority(),
                       message.validate_only()};
}

// A call that is answered at once, from the store.
grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext& context,
                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <typename Stream>
Stream* BeginStream(std::shared_ptr<Stream> stream) {
  stream->Begin();
  return stream.get();
}

class JobService : public v1::JobService::CallbackService {
 public:
  JobService(Controller& controller, JobStore& store, const DataDirectory& directory)
      : controller_(controller), store_(store), directory_(directory) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override {
    absl::StatusOr<SubmitRequest> submit = DecodeSubmit(*request);
    if (!submit.ok()) return FinishNow(*context, submit.status());
    auto [call, answer] =
        UnaryCall<absl::StatusOr<Job>>::Start([response](const absl::StatusOr<Job>& job) {
          if (job.ok()) *response->mutable_job() = EncodeJob(*job);
          return job.status();
        });
    controller_.Submit(*std::move(submit), std::move(answer));
    return call;
  }

  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext*,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override {
    auto [call, answer] =
        UnaryCall<absl::StatusOr<Job>>::Start([response](const absl::StatusOr<Job>& job) {
          if (job.ok()) *response = EncodeJob(*job);
          return job.status();
        });
    controller_.Cancel(request->id(), std::move(answer));
    return call;
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override {
    const absl::StatusOr<Job> job = store_.Get(request->id());
    if (job.ok()) *response = EncodeJob(*job);
    return FinishNow(*context, job.status());
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    if (request->page_size() < 0) {
      return FinishNow(*context, absl::InvalidArgumentError("page_size: must not be negative"));
    }
    const int size =
        request->page_size() == 0 ? kDefaultPageSize : std::min(request->page_size(), kMaxPageSize);
    const absl::StatusOr<JobPage> page = store_.List(size, request->page_token());
    if (page.ok()) {
      for (const Job& job : page->jobs) *response->add_jobs() = EncodeJob(job);
      response->set_next_page_token(page->next_page_token);
    }
    return FinishNow(*context, page.status());
  }

  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override {
    const absl::StatusOr<Job> job = store_.Get(request->job_id());
    if (!job.ok()) return FinishNow(*context, job.status());
    const auto checkpoints = store_.ListCheckpoints(request->job_id());
    if (checkpoints.ok()) {
      for (const CheckpointRecord& checkpoint : *checkpoints) {
        *response->add_checkpoints() = EncodeCheckpoint(checkpoint);
      }
    }
    return FinishNow(*context, checkpoints.status());
  }

  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext*,
                                                   const v1::WatchJobRequest* request) override {
    return BeginStream(std::make_shared<JobEventStream>(controller_, store_, request->id()));
  }

  grpc::ServerWriteReactor<v1::LogLine>* ReadLogs(grpc::CallbackServerContext*,
                                                  const v1::ReadLogsRequest* request) override {
    return BeginStream(std::make_shared<LogStream>(controller_, store_, directory_, *request));
  }

  grpc::ServerWriteReactor<v1::StepRecord>* ReadSteps(
      grpc::CallbackServerContext*, const v1::ReadStepsRequest* request) override {
    return BeginStream(std::make_shared<StepStream>(controller_, store_, *request));
  }

 private:
  Controller& controller_;
  JobStore& store_;
  const DataDirectory& directory_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(Controller& controller, JobStore& store,
                                              const DataDirectory& directory) {
  return std::make_unique<JobService>(controller, store, directory);
}

}  // namespace esteira
