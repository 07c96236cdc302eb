#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "esteira/v1/cluster.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace esteira {

struct Connection::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : jobs(channel), cluster(channel), health(channel) {}
  v1::JobService::Stub jobs;
  v1::ClusterService::Stub cluster;
  grpc::health::v1::Health::Stub health;
};

Connection::Connection(std::string server, absl::Duration timeout)
    : server_(std::move(server)),
      timeout_(timeout),
      stubs_(std::make_unique<Stubs>(MakeChannel(server_))) {}

Connection::~Connection() = default;

// gRPC's own words for a server that is not there are long; ours name it.
absl::Status Connection::Named(absl::Status status) const {
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(absl::StrCat("cannot connect to the coordinator at ", server_));
  }
  return status;
}

namespace {

template <typename Call>
absl::Status Unary(absl::Duration timeout, const Call& call) {
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  return FromGrpcStatus(call(context));
}

template <typename Item, typename Reader>
absl::Status ReadAll(grpc::ClientContext& context, Reader& reader,
                     const std::function<bool(const Item&)>& on_item) {
  Item item;
  bool stopped = false;
  while (reader.Read(&item)) {
    if (on_item(item)) continue;
    stopped = true;
    context.TryCancel();
    break;
  }
  const grpc::Status status = reader.Finish();
  return stopped ? absl::OkStatus() : FromGrpcStatus(status);
}

}  // namespace

absl::Status Connection::Submit(const v1::SubmitJobRequest& request,
                                v1::SubmitJobResponse& response) const {
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->jobs.SubmitJob(&context, request, &response);
  }));
}

absl::Status Connection::Get(const std::string& job, v1::Job& response) const {
  v1::GetJobRequest request;
  request.set_id(job);
  return Named(Unary(
      timeout_, [&](auto& context) { return stubs_->jobs.GetJob(&context, request, &response); }));
}

absl::Status Connection::List(const v1::ListJobsRequest& request,
                              v1::ListJobsResponse& response) const {
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->jobs.ListJobs(&context, request, &response);
  }));
}

absl::Status Connection::Cancel(const std::string& job, v1::Job& response) const {
  v1::CancelJobRequest request;
  request.set_id(job);
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->jobs.CancelJob(&context, request, &response);
  }));
}

absl::Status Connection::ListCheckpoints(const std::string& job,
                                         v1::ListCheckpointsResponse& response) const {
  v1::ListCheckpointsRequest request;
  request.set_job_id(job);
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->jobs.ListCheckpoints(&context, request, &response);
  }));
}

absl::Status Connection::ListWorkers(const v1::ListWorkersRequest& request,
                                     v1::ListWorkersResponse& response) const {
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->cluster.ListWorkers(&context, request, &response);
  }));
}

absl::Status Connection::GetVersion(v1::Version& response) const {
  const v1::GetVersionRequest request;
  return Named(Unary(timeout_, [&](auto& context) {
    return stubs_->cluster.GetVersion(&context, request, &response);
  }));
}

absl::Status Connection::Health(const std::string& service, std::string& state) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  RETURN_IF_ERROR(Named(Unary(timeout_, [&](auto& context) {
    return stubs_->health.Check(&context, request, &response);
  })));
  state = grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
  return absl::OkStatus();
}

absl::Status Connection::Watch(const std::string& job, absl::Time deadline,
                               const std::function<bool(const v1::JobEvent&)>& on_item) const {
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  v1::WatchJobRequest request;
  request.set_id(job);
  auto reader = stubs_->jobs.WatchJob(&context, request);
  return Named(ReadAll(context, *reader, on_item));
}

absl::Status Connection::ReadLogs(const v1::ReadLogsRequest& request,
                                  const std::function<bool(const v1::LogLine&)>& on_item) const {
  grpc::ClientContext context;
  auto reader = stubs_->jobs.ReadLogs(&context, request);
  return Named(ReadAll(context, *reader, on_item));
}

absl::Status Connection::ReadSteps(
    const v1::ReadStepsRequest& request,
    const std::function<bool(const v1::StepRecord&)>& on_item) const {
  grpc::ClientContext context;
  auto reader = stubs_->jobs.ReadSteps(&context, request);
  return Named(ReadAll(context, *reader, on_item));
}

}  // namespace esteira
