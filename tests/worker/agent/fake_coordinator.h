#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "esteira/v1/worker.pb.h"

namespace esteira {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

// What one stream of a worker brought, apart from its heartbeats.
struct SeenStream {
  std::vector<v1::WorkerMessage> messages;
  int64_t heartbeats = 0;
  bool ended = false;
};

// The coordinator's end of workers' sessions, on a free port, driven by the test. Thread-safe.
class FakeCoordinator {
 public:
  // How registrations and reports are answered from now on.
  struct Behaviour {
    bool answer = true;        // registrations; otherwise they stay unanswered
    std::string refusal = {};  // not empty: Refused
    int64_t heartbeat_ms = 10;
    uint64_t acknowledge_at_registration = 0;  // sent before Registered
    bool acknowledge = false;                  // every report
  };

  FakeCoordinator();
  ~FakeCoordinator();

  std::string address() const;
  void Set(const Behaviour& behaviour);
  // To the stream that was opened last.
  void Send(const v1::CoordinatorMessage& message);
  void Acknowledge(uint64_t sequence);
  // Ends every stream.
  void Break();

  using Streams = std::vector<SeenStream>;
  // Waits until `predicate` holds; false after kPatience.
  bool Await(const std::function<bool(const Streams&)>& predicate);
  bool AwaitStreams(size_t count);
  // Waits for a report that `matches`; an empty one after kPatience.
  v1::TrainerReport AwaitReport(const std::function<bool(const v1::TrainerReport&)>& matches);
  // The exit of an epoch; without exit after kPatience.
  v1::TrainerReport AwaitExit(int64_t epoch);
  Streams streams();

 private:
  class Service;
  struct Core;
  std::unique_ptr<Core> core_;
};

// Keeps lines for a test to wait for. Thread-safe.
class KeepingSink : public LogSink {
 public:
  void Write(LogLevel level, absl::string_view line) override;
  bool Await(const std::string& part);

 private:
  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace esteira
