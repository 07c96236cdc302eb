#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"

namespace esteira {

enum class Pulled {
  kItem,     // send the response that was filled in
  kNothing,  // wait to be woken
  kEnd,      // the stream ends well
};

// A server stream that asks for its next item only when the one before has been sent, so that a
// slow reader costs no memory. Between items it sleeps until Wake. Pull runs on gRPC's threads, one
// call at a time. Owns itself until gRPC is done with it.
template <typename Response>
class PullStream : public grpc::ServerWriteReactor<Response>,
                   public std::enable_shared_from_this<PullStream<Response>> {
 public:
  // Once, after construction in a shared_ptr.
  void Begin() {
    self_ = this->shared_from_this();
    OnBegin();
    Wake();
  }

  // There may be more. Any thread; never blocks.
  void Wake() {
    absl::MutexLock lock(&mutex_);
    if (busy_) {
      woken_ = true;
      return;
    }
    if (finished_) return;
    busy_ = true;
    alarm_ = std::make_unique<grpc::Alarm>();
    // The alarm belongs to this stream, so what it holds must not own the stream.
    alarm_->Set(gpr_now(GPR_CLOCK_MONOTONIC), [weak = this->weak_from_this()](bool) {
      if (const auto self = weak.lock()) self->Continue();
    });
  }

 protected:
  virtual absl::StatusOr<Pulled> Pull(Response& response) = 0;
  // Around the stream's life: to watch and to stop watching.
  virtual void OnBegin() = 0;
  virtual void OnEnd() = 0;

 private:
  void Continue() {
    while (true) {
      response_.Clear();
      const absl::StatusOr<Pulled> pulled = Pull(response_);
      absl::MutexLock lock(&mutex_);
      if (cancelled_) return FinishLocked(grpc::Status::CANCELLED);
      if (!pulled.ok()) return FinishLocked(ToGrpcStatus(pulled.status()));
      if (*pulled == Pulled::kEnd) return FinishLocked(grpc::Status::OK);
      if (*pulled == Pulled::kItem) return this->StartWrite(&response_);
      if (!std::exchange(woken_, false)) {
        busy_ = false;
        return;
      }
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      return FinishLocked(grpc::Status::CANCELLED);
    }
    Continue();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (!busy_) FinishLocked(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    OnEnd();
    self_.reset();
  }

  void FinishLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(finished_, true)) return;
    busy_ = false;
    this->Finish(status);
  }

  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // Continue runs, is due, or a write is under way
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  Response response_;  // belongs to whoever made busy_ true
  std::shared_ptr<PullStream> self_;
};

}  // namespace esteira
