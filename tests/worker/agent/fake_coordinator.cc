#include "tests/worker/agent/fake_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "esteira/v1/worker.grpc.pb.h"

namespace esteira {

using Wire = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

struct FakeCoordinator::Core {
  absl::Mutex mutex;
  Behaviour behaviour ABSL_GUARDED_BY(mutex);
  Streams streams ABSL_GUARDED_BY(mutex);
  std::map<size_t, std::pair<grpc::ServerContext*, Wire*>> open ABSL_GUARDED_BY(mutex);
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

class FakeCoordinator::Service : public v1::WorkerService::Service {
 public:
  explicit Service(Core& core) : core_(core) {}

  grpc::Status Session(grpc::ServerContext* context, Wire* wire) override {
    size_t index = 0;
    {
      absl::MutexLock lock(&core_.mutex);
      index = core_.streams.size();
      core_.streams.emplace_back();
      core_.open[index] = {context, wire};
    }
    v1::WorkerMessage message;
    while (wire->Read(&message)) {
      absl::MutexLock lock(&core_.mutex);
      Keep(core_.streams[index], message);
      Answer(*wire, message);
    }
    absl::MutexLock lock(&core_.mutex);
    core_.streams[index].ended = true;
    core_.open.erase(index);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken by the test");
  }

 private:
  static void Keep(SeenStream& stream, const v1::WorkerMessage& message) {
    if (!message.has_heartbeat()) return stream.messages.push_back(message);
    ++stream.heartbeats;
  }

  void Answer(Wire& wire, const v1::WorkerMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex) {
    const Behaviour& behaviour = core_.behaviour;
    if (message.has_register_() && behaviour.answer) {
      v1::CoordinatorMessage answer;
      if (!behaviour.refusal.empty()) {
        answer.mutable_refused()->set_message(behaviour.refusal);
      } else {
        if (behaviour.acknowledge_at_registration > 0)
          Acknowledge(wire, behaviour.acknowledge_at_registration);
        answer.mutable_registered()->set_heartbeat_ms(behaviour.heartbeat_ms);
      }
      wire.Write(answer);
    }
    if (message.has_report() && behaviour.acknowledge) Acknowledge(wire, message.sequence());
  }

  static void Acknowledge(Wire& wire, uint64_t sequence) {
    v1::CoordinatorMessage message;
    message.mutable_acknowledged()->set_sequence(sequence);
    wire.Write(message);
  }

  Core& core_;
};

FakeCoordinator::FakeCoordinator() : core_(std::make_unique<Core>()) {
  core_->service = std::make_unique<Service>(*core_);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &core_->port);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.RegisterService(core_->service.get());
  core_->server = builder.BuildAndStart();
}

FakeCoordinator::~FakeCoordinator() { core_->server->Shutdown(std::chrono::system_clock::now()); }

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", core_->port); }

void FakeCoordinator::Set(const Behaviour& behaviour) {
  absl::MutexLock lock(&core_->mutex);
  core_->behaviour = behaviour;
}

void FakeCoordinator::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&core_->mutex);
  if (!core_->open.empty()) core_->open.rbegin()->second.second->Write(message);
}

void FakeCoordinator::Acknowledge(uint64_t sequence) {
  v1::CoordinatorMessage message;
  message.mutable_acknowledged()->set_sequence(sequence);
  Send(message);
}

void FakeCoordinator::Break() {
  absl::MutexLock lock(&core_->mutex);
  for (auto& [index, stream] : core_->open) stream.first->TryCancel();
}

bool FakeCoordinator::Await(const std::function<bool(const Streams&)>& predicate) {
  absl::MutexLock lock(&core_->mutex);
  const auto holds = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex) {
    return predicate(core_->streams);
  };
  return core_->mutex.AwaitWithTimeout(absl::Condition(&holds), kPatience);
}

bool FakeCoordinator::AwaitStreams(size_t count) {
  return Await([&](const Streams& streams) {
    return streams.size() >= count && !streams[count - 1].messages.empty();
  });
}

v1::TrainerReport FakeCoordinator::AwaitReport(
    const std::function<bool(const v1::TrainerReport&)>& matches) {
  v1::TrainerReport found;
  Await([&](const Streams& streams) {
    for (const SeenStream& stream : streams) {
      for (const v1::WorkerMessage& message : stream.messages) {
        if (!message.has_report() || !matches(message.report())) continue;
        found = message.report();
        return true;
      }
    }
    return false;
  });
  return found;
}

v1::TrainerReport FakeCoordinator::AwaitExit(int64_t epoch) {
  return AwaitReport([epoch](const v1::TrainerReport& report) {
    return report.has_exited() && report.epoch() == epoch;
  });
}

FakeCoordinator::Streams FakeCoordinator::streams() {
  absl::MutexLock lock(&core_->mutex);
  return core_->streams;
}

void KeepingSink::Write(LogLevel, absl::string_view line) {
  absl::MutexLock lock(&mutex_);
  absl::StrAppend(&text_, line, "\n");
}

bool KeepingSink::Await(const std::string& part) {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return text_.find(part) != std::string::npos;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
}

}  // namespace esteira
