#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"

namespace esteira {

// A unary call that is answered later, from another thread, or cancelled first. Owns itself until
// gRPC is done with it.
template <typename Value>
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  // Takes the answer; safe to call after the call is over, and from any thread.
  using Answer = std::function<void(Value)>;

  // `encode` writes the response, which exists as long as the call, and gives the call's status.
  static std::pair<UnaryCall*, Answer> Start(std::function<absl::Status(const Value&)> encode) {
    auto* call = new UnaryCall(std::move(encode));
    return {call, [shared = call->shared_](const Value& value) {
              absl::MutexLock lock(&shared->mutex);
              if (shared->call == nullptr) return;
              UnaryCall* open = std::exchange(shared->call, nullptr);
              open->Finish(ToGrpcStatus(open->encode_(value)));
            }};
  }

  void OnCancel() override {
    absl::MutexLock lock(&shared_->mutex);
    if (shared_->call == nullptr) return;
    shared_->call = nullptr;
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  struct Shared {
    absl::Mutex mutex;
    UnaryCall* call = nullptr;  // until it is finished
  };

  explicit UnaryCall(std::function<absl::Status(const Value&)> encode)
      : encode_(std::move(encode)), shared_(std::make_shared<Shared>()) {
    shared_->call = this;
  }

  const std::function<absl::Status(const Value&)> encode_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace esteira
