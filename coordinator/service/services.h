#pragma once

#include <memory>
#include <string>

#include "coordinator/controller/controller.h"

namespace grpc {
class Service;
}

namespace esteira {

// The coordinator's gRPC services: parse, call the controller or read the store, encode.
// Thread-safe; what they are made with outlives them, and they outlive the server.
std::unique_ptr<grpc::Service> MakeJobService(Controller& controller, JobStore& store,
                                              const DataDirectory& directory);
std::unique_ptr<grpc::Service> MakeClusterService(Controller& controller, std::string version);
std::unique_ptr<grpc::Service> MakeWorkerService(Controller& controller);

}  // namespace esteira
