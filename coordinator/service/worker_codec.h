// Between the worker's session on the wire and the controller's messages.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/controller/worker_messages.h"

namespace esteira::v1 {
class CoordinatorMessage;
class Worker;
class WorkerMessage;
}  // namespace esteira::v1

namespace esteira {

// InvalidArgument when something that must be there is not.
absl::StatusOr<WorkerMessage> DecodeWorkerMessage(const v1::WorkerMessage& message);

v1::CoordinatorMessage EncodeWorkerCommand(const WorkerCommand& command);

v1::Worker EncodeWorker(const WorkerRecord& worker);

}  // namespace esteira
