#include <utility>

#include "coordinator/service/services.h"
#include "coordinator/service/unary_call.h"
#include "coordinator/service/worker_codec.h"
#include "esteira/v1/cluster.grpc.pb.h"

namespace esteira {
namespace {

class ClusterService : public v1::ClusterService::CallbackService {
 public:
  ClusterService(Controller& controller, std::string version)
      : controller_(controller), version_(std::move(version)) {}

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext*, const v1::ListWorkersRequest*,
                                        v1::ListWorkersResponse* response) override {
    auto [call, answer] = UnaryCall<std::vector<WorkerRecord>>::Start(
        [response](const std::vector<WorkerRecord>& workers) {
          for (const WorkerRecord& worker : workers)
            *response->add_workers() = EncodeWorker(worker);
          return absl::OkStatus();
        });
    controller_.ListWorkers(std::move(answer));
    return call;
  }

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::Version* response) override {
    response->set_version(version_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Controller& controller_;
  const std::string version_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(Controller& controller, std::string version) {
  return std::make_unique<ClusterService>(controller, std::move(version));
}

}  // namespace esteira
