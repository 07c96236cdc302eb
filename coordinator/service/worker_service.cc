#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"
#include "coordinator/service/services.h"
#include "coordinator/service/worker_codec.h"
#include "esteira/v1/worker.grpc.pb.h"

namespace esteira {
namespace {

// Messages of one worker that the controller has not handled yet; reading stops at so many.
constexpr int kMaxUnhandled = 64;

// One worker's stream. Owns itself until gRPC is done with it; the controller may hold it longer.
class SessionReactor : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>,
                       public WorkerSession,
                       public std::enable_shared_from_this<SessionReactor> {
 public:
  explicit SessionReactor(Controller& controller) : controller_(controller) {}

  void Begin() {
    self_ = shared_from_this();
    number_ = controller_.OpenSession(self_);
    StartRead(&incoming_);
  }

  void Send(const WorkerCommand& command) override {
    v1::CoordinatorMessage message = EncodeWorkerCommand(command);
    absl::MutexLock lock(&mutex_);
    if (finished_ || closing_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (finished_ || closing_) return;
    closing_ = status;
    if (outgoing_.empty()) FinishLocked(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      FinishLocked(absl::OkStatus());
      return;
    }
    absl::StatusOr<WorkerMessage> message = DecodeWorkerMessage(incoming_);
    if (!message.ok()) {
      Close(message.status());
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      ++unhandled_;
    }
    controller_.Receive(number_, *std::move(message),
                        [self = shared_from_this()] { self->OnHandled(); });
    ReadMore();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (!ok) {
      FinishLocked(absl::OkStatus());
      return;
    }
    outgoing_.pop_front();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      FinishLocked(*closing_);
    }
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    FinishLocked(absl::CancelledError("the stream was cancelled"));
  }

  void OnDone() override {
    controller_.CloseSession(number_);
    self_.reset();
  }

 private:
  void OnHandled() {
    {
      absl::MutexLock lock(&mutex_);
      --unhandled_;
      if (!std::exchange(paused_, false)) return;
    }
    ReadMore();
  }

  // With a read under way there is none other; a pause ends with the next message that is handled.
  void ReadMore() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (unhandled_ >= kMaxUnhandled) {
      paused_ = true;
      return;
    }
    StartRead(&incoming_);
  }

  void FinishLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(finished_, true)) return;
    Finish(ToGrpcStatus(status));
  }

  Controller& controller_;
  int64_t number_ = 0;
  std::shared_ptr<SessionReactor> self_;
  v1::WorkerMessage incoming_;

  absl::Mutex mutex_;
  int unhandled_ ABSL_GUARDED_BY(mutex_) = 0;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::CoordinatorMessage> outgoing_
      ABSL_GUARDED_BY(mutex_);  // the first is being written
};

class WorkerService : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerService(Controller& controller) : controller_(controller) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext*) override {
    auto session = std::make_shared<SessionReactor>(controller_);
    session->Begin();
    return session.get();
  }

 private:
  Controller& controller_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Controller& controller) {
  return std::make_unique<WorkerService>(controller);
}

}  // namespace esteira
