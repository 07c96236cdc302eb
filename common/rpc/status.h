// Between absl::Status and grpc::Status: codes map one to one, the message is kept.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace esteira {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// "NOT_FOUND", as it stands in the gRPC documentation.
std::string CodeName(absl::StatusCode code);

}  // namespace esteira
