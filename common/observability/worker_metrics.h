#pragma once

#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace esteira {

// Why a trainer process ended.
enum class ExitCause { kDone, kError, kSignal, kOutOfMemory };

// One step of this worker's trainer.
struct StepObservation {
  double loss = 0;
  int64_t tokens = 0;  // of the global batch
  absl::Duration duration;
  double bubble_ratio = 0;
  double exposed_communication_ratio = 0;
  std::string transport;  // inproc | ucx | nccl
  std::map<std::string, int64_t>
      bytes_moved;               // by operation: a communication op's name, e.g. "SEND_ACT"
  int64_t messages_dropped = 0;  // by the transport, since the step before
};

// What a worker daemon exports. The registry owns the metrics and outlives this. Series that are
// known in advance exist from the start with value 0; an unknown transport or operation counts as
// "other", so that labels stay bounded. Thread-safe.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(prometheus::Registry& registry);

  void ObserveStep(const StepObservation& step);
  void ObserveStart();
  void ObserveExit(ExitCause cause);
  // A save of a checkpoint that ended, well or not; `stall`: the part in which no step could run.
  void ObserveCheckpoint(bool failed, absl::Duration duration, absl::Duration stall);
  void CountDroppedLine();
  void SetConnected(bool connected);
  // What the device achieves, in the two precisions and from memory; 0: not known.
  void SetRates(double flops_fp32, double flops_bf16, double memory_bytes_per_second);

 private:
  prometheus::Counter& steps_;
  prometheus::Counter& tokens_;
  prometheus::Gauge& loss_;
  prometheus::Histogram& step_seconds_;
  prometheus::Gauge& bubble_ratio_;
  prometheus::Gauge& exposed_communication_ratio_;
  prometheus::Counter& messages_dropped_;
  prometheus::Counter& trainer_starts_;
  prometheus::Counter& lines_dropped_;
  prometheus::Histogram& checkpoint_seconds_;
  prometheus::Histogram& checkpoint_stall_seconds_;
  prometheus::Counter& checkpoint_failures_;
  prometheus::Gauge& connected_;
  prometheus::Gauge& memory_bytes_per_second_;
  std::map<std::string, prometheus::Gauge*> flops_;  // by precision
  std::map<std::pair<std::string, std::string>, prometheus::Counter*>
      bytes_moved_;  // transport, operation
  std::map<ExitCause, prometheus::Counter*> trainer_exits_;
};

}  // namespace esteira
