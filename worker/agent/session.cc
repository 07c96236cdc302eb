#include "worker/agent/session.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "esteira/v1/worker.grpc.pb.h"

namespace esteira {
namespace {

constexpr size_t kLineOverhead = 512;

size_t LogBytes(const v1::TrainerReport& report) {
  return report.has_log() ? report.log().text().size() + kLineOverhead : 0;
}

}  // namespace

// One gRPC stream. `broken` ends the writer when the reader has seen the end.
struct Session::Connection {
  grpc::ClientContext context;
  std::unique_ptr<v1::WorkerService::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream;
  bool broken = false;  // guarded by Session::mutex_
};

Session::Session(SessionOptions options, v1::Register registration, Callbacks callbacks, Logger log)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      log_(std::move(log)),
      registration_(std::move(registration)) {
  thread_ = std::thread([this] { Run(); });
}

Session::~Session() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (connection_) connection_->context.TryCancel();
  }
  thread_.join();
}

bool Session::Report(v1::TrainerReport report) {
  absl::MutexLock lock(&mutex_);
  if (report.has_log() && log_bytes_ + LogBytes(report) > options_.kept_log_bytes) {
    ++dropped_lines_;
    report.mutable_log()->clear_text();
    dropped_line_ = std::move(report);
    return false;
  }
  if (dropped_lines_ > 0) {
    dropped_line_.mutable_log()->set_text(
        absl::StrCat(dropped_lines_, dropped_lines_ == 1 ? " line was" : " lines were",
                     " dropped here: the coordinator did not take them fast enough"));
    dropped_lines_ = 0;
    Keep(std::exchange(dropped_line_, {}));
  }
  Keep(std::move(report));
  return true;
}

void Session::Keep(v1::TrainerReport report) {
  v1::WorkerMessage message = Envelope(next_sequence_++);
  *message.mutable_report() = std::move(report);
  log_bytes_ += LogBytes(message.report());
  reports_.push_back(std::move(message));
  if (reports_.size() > options_.kept_reports) DropOldest();
}

void Session::DropOldest() {
  log_bytes_ -= LogBytes(reports_.front().report());
  reports_.pop_front();
}

void Session::SetRegistration(v1::Register registration) {
  absl::MutexLock lock(&mutex_);
  registration_ = std::move(registration);
}

void Session::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto flushed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reports_.empty(); };
  mutex_.AwaitWithTimeout(absl::Condition(&flushed), timeout);
}

v1::WorkerMessage Session::Envelope(uint64_t sequence) const {
  v1::WorkerMessage message;
  message.set_worker_id(options_.worker_id);
  message.set_incarnation(options_.incarnation);
  message.set_sequence(sequence);
  return message;
}

void Session::Run() {
  absl::Duration backoff = options_.first_backoff;
  while (true) {
    Serve();
    absl::MutexLock lock(&mutex_);
    if (registered_) backoff = options_.first_backoff;
    registered_ = false;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), backoff)) return;
    backoff = std::min(backoff * 2, options_.last_backoff);
  }
}

void Session::Serve() {
  auto connection = std::make_shared<Connection>();
  connection->stub = v1::WorkerService::NewStub(MakeChannel(options_.coordinator));
  v1::WorkerMessage hello = Envelope(0);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    connection_ = connection;
    *hello.mutable_register_() = registration_;
    next_to_send_ = reports_.empty() ? next_sequence_ : reports_.front().sequence();
  }
  // From here on the destructor can cancel the call, even one that waits for a connection.
  connection->stream = connection->stub->Session(&connection->context);
  connection->stream->Write(hello);
  std::thread writer([&] { WriteMessages(*connection); });
  ReadMessages(*connection);
  writer.join();
  const grpc::Status status = connection->stream->Finish();
  bool lost = false;
  {
    absl::MutexLock lock(&mutex_);
    connection_ = nullptr;
    lost = registered_;
    if (lost && !stopping_) {
      log_.With("reason", status.error_message()).Warning("lost the coordinator");
    }
  }
  if (lost) callbacks_.on_connection(false);
}

void Session::ReadMessages(Connection& connection) {
  v1::CoordinatorMessage message;
  while (connection.stream->Read(&message)) Handle(std::move(message));
  absl::MutexLock lock(&mutex_);
  connection.broken = true;
}

void Session::Handle(v1::CoordinatorMessage message) {
  if (message.has_acknowledged()) {
    absl::MutexLock lock(&mutex_);
    while (!reports_.empty() && reports_.front().sequence() <= message.acknowledged().sequence()) {
      DropOldest();
    }
    // A coordinator that came back may know already what was about to be sent again.
    next_to_send_ =
        std::max(next_to_send_, reports_.empty() ? next_sequence_ : reports_.front().sequence());
    return;
  }
  if (message.has_registered()) {
    {
      absl::MutexLock lock(&mutex_);
      registered_ = true;
      heartbeat_ = absl::Milliseconds(std::max<int64_t>(message.registered().heartbeat_ms(), 10));
    }
    callbacks_.on_connection(true);
  }
  callbacks_.on_message(std::move(message));
}

// Sends reports as they come, a heartbeat at once after registration, and one every heartbeat's
// time from then on. Nothing goes out before the coordinator has answered the registration.
void Session::WriteMessages(Connection& connection) {
  absl::Time next_beat = absl::InfinitePast();
  while (true) {
    std::optional<v1::WorkerMessage> message;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return connection.broken || stopping_ ||
               (registered_ &&
                (next_to_send_ < next_sequence_ || next_beat == absl::InfinitePast()));
      };
      const absl::Time until = registered_ ? next_beat : absl::InfiniteFuture();
      mutex_.AwaitWithDeadline(absl::Condition(&has_work), until);
      if (connection.broken || stopping_) return;
      if (!registered_) continue;
      if (absl::Now() >= next_beat) {
        message = Envelope(0);
        message->mutable_heartbeat();
        next_beat = absl::Now() + heartbeat_;
      } else if (next_to_send_ < next_sequence_) {
        // Sequence numbers are consecutive; what fell out of the kept reports is skipped.
        const uint64_t first = reports_.front().sequence();
        next_to_send_ = std::max(next_to_send_, first);
        message = reports_[next_to_send_++ - first];
      }
    }
    if (message && !connection.stream->Write(*message)) return;
  }
}

}  // namespace esteira
