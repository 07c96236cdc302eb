#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {

// One coordinator, as calls with a deadline. Errors name the server. Thread-safe.
class Connection {
 public:
  explicit Connection(std::string server, absl::Duration timeout = absl::Seconds(20));
  ~Connection();

  absl::Status Submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse& response) const;
  absl::Status Get(const std::string& job, v1::Job& response) const;
  absl::Status List(const v1::ListJobsRequest& request, v1::ListJobsResponse& response) const;
  absl::Status Cancel(const std::string& job, v1::Job& response) const;
  absl::Status ListCheckpoints(const std::string& job, v1::ListCheckpointsResponse& response) const;
  absl::Status ListWorkers(const v1::ListWorkersRequest& request,
                           v1::ListWorkersResponse& response) const;
  absl::Status GetVersion(v1::Version& response) const;
  // Serving or not, by gRPC's health protocol; `service` may be empty.
  absl::Status Health(const std::string& service, std::string& state) const;

  // Streams: `on_item` returns false to end the stream early. `deadline` bounds the whole stream.
  absl::Status Watch(const std::string& job, absl::Time deadline,
                     const std::function<bool(const v1::JobEvent&)>& on_item) const;
  absl::Status ReadLogs(const v1::ReadLogsRequest& request,
                        const std::function<bool(const v1::LogLine&)>& on_item) const;
  absl::Status ReadSteps(const v1::ReadStepsRequest& request,
                         const std::function<bool(const v1::StepRecord&)>& on_item) const;

  const std::string& server() const { return server_; }

 private:
  struct Stubs;
  absl::Status Named(absl::Status status) const;

  const std::string server_;
  const absl::Duration timeout_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace esteira
