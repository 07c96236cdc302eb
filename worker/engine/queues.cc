#include "worker/engine/queues.h"

namespace esteira {
namespace {

const char* QueueName(Queue queue) {
  switch (queue) {
    case Queue::kCompute: return "compute";
    case Queue::kSendAct: return "send_act";
    case Queue::kRecvAct: return "recv_act";
    case Queue::kSendGrad: return "send_grad";
    case Queue::kRecvGrad: return "recv_grad";
    case Queue::kShard: return "shard";
  }
  return "";
}

}  // namespace

Queues::Queues(Device& device, Transport& transport) : transport_(transport) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i] = device.NewStream(QueueName(static_cast<Queue>(i)));
  }
}

void Queues::Guard(Queue queue) {
  (*this)[queue].Enqueue([this] { return FirstFailure(); });
}

absl::Status Queues::Fail(const absl::Status& cause) {
  const std::lock_guard lock(mutex_);
  if (cause_.ok()) {
    cause_ = cause;
    transport_.Abort(cause_);
  }
  return cause_;
}

absl::Status Queues::Synchronize() {
  for (const auto& stream : streams_) stream->Synchronize().IgnoreError();
  return FirstFailure();
}

absl::Status Queues::FirstFailure() {
  const std::lock_guard lock(mutex_);
  if (!cause_.ok()) return cause_;
  for (const auto& stream : streams_) {
    cause_ = stream->status();
    if (cause_.ok()) continue;
    transport_.Abort(cause_);
    break;
  }
  return cause_;
}

}  // namespace esteira
