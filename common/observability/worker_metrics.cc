#include "common/observability/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/observability/families.h"

namespace esteira {
namespace {

const char* const kTransports[] = {"inproc", "ucx", "nccl", "other"};
const char* const kOperations[] = {"SEND_ACT", "RECV_ACT", "SEND_GRAD", "RECV_GRAD", "GATHER",
                                   "REDUCE",   "TIE_GRAD", "NORM",      "TIE_PARAM", "other"};

const std::pair<ExitCause, const char*> kCauses[] = {{ExitCause::kDone, "done"},
                                                     {ExitCause::kError, "error"},
                                                     {ExitCause::kSignal, "signal"},
                                                     {ExitCause::kOutOfMemory, "out_of_memory"}};

template <size_t kSize>
std::string Known(const char* const (&names)[kSize], absl::string_view name) {
  for (const char* known : names) {
    if (name == known) return known;
  }
  return "other";
}

}  // namespace

WorkerMetrics::WorkerMetrics(prometheus::Registry& registry)
    : steps_(CounterOf(registry, "esteira_worker_steps_total",
                       "Training steps that the trainer finished")),
      tokens_(CounterOf(registry, "esteira_worker_tokens_total",
                        "Tokens of the global batches of the finished steps")),
      loss_(GaugeOf(registry, "esteira_worker_loss", "Training loss of the last step")),
      step_seconds_(HistogramOf(registry, "esteira_worker_step_seconds",
                                "Duration of a training step on this rank", StepSecondsBuckets())),
      bubble_ratio_(GaugeOf(registry, "esteira_worker_bubble_ratio",
                            "Share of the last step in which the rank waited for a neighbour")),
      exposed_communication_ratio_(
          GaugeOf(registry, "esteira_worker_exposed_communication_ratio",
                  "Share of the last step in which computation waited for sharding communication")),
      messages_dropped_(
          CounterOf(registry, "esteira_worker_dropped_messages_total",
                    "Messages of other ranks that failed the check of their header: of another "
                    "job, epoch, rank or size")),
      trainer_starts_(CounterOf(registry, "esteira_worker_trainer_starts_total",
                                "Trainer processes that the daemon started")),
      lines_dropped_(CounterOf(
          registry, "esteira_worker_dropped_log_lines_total",
          "Lines of the trainer's output that came faster than the coordinator took them")),
      checkpoint_seconds_(HistogramOf(registry, "esteira_worker_checkpoint_seconds",
                                      "Duration of this rank's part of a save that succeeded, from "
                                      "the end of its step",
                                      StepSecondsBuckets())),
      checkpoint_stall_seconds_(
          HistogramOf(registry, "esteira_worker_checkpoint_stall_seconds",
                      "Time of a save in which this rank could not train: waiting for the save "
                      "before, and copying",
                      StepSecondsBuckets())),
      checkpoint_failures_(CounterOf(registry, "esteira_worker_checkpoint_failures_total",
                                     "Saves that failed; the earlier checkpoints stay")),
      connected_(GaugeOf(registry, "esteira_worker_connected",
                         "1 while the session with the coordinator is open")),
      memory_bytes_per_second_(GaugeOf(registry, "esteira_worker_memory_bytes_per_second",
                                       "Memory bandwidth of the device; 0: not known")) {
  auto& flops = prometheus::BuildGauge()
                    .Name("esteira_worker_flops")
                    .Help("Operations a second of a matrix product on the device; 0: not known")
                    .Register(registry);
  for (const char* precision : {"fp32", "bf16"}) {
    flops_[precision] = &flops.Add({{"precision", precision}});
  }
  auto& moved = prometheus::BuildCounter()
                    .Name("esteira_worker_moved_bytes_total")
                    .Help("Bytes that the rank moved to or from other ranks")
                    .Register(registry);
  for (const char* transport : kTransports) {
    for (const char* operation : kOperations) {
      bytes_moved_[{transport, operation}] =
          &moved.Add({{"transport", transport}, {"operation", operation}});
    }
  }
  auto& exits = prometheus::BuildCounter()
                    .Name("esteira_worker_trainer_exits_total")
                    .Help("Trainer processes that ended, by cause")
                    .Register(registry);
  for (const auto& [cause, name] : kCauses) trainer_exits_[cause] = &exits.Add({{"cause", name}});
}

void WorkerMetrics::SetRates(double flops_fp32, double flops_bf16, double memory_bytes_per_second) {
  flops_["fp32"]->Set(flops_fp32);
  flops_["bf16"]->Set(flops_bf16);
  memory_bytes_per_second_.Set(memory_bytes_per_second);
}

void WorkerMetrics::ObserveStep(const StepObservation& step) {
  steps_.Increment();
  tokens_.Increment(static_cast<double>(step.tokens));
  loss_.Set(step.loss);
  step_seconds_.Observe(absl::ToDoubleSeconds(step.duration));
  bubble_ratio_.Set(step.bubble_ratio);
  exposed_communication_ratio_.Set(step.exposed_communication_ratio);
  messages_dropped_.Increment(static_cast<double>(step.messages_dropped));
  const std::string transport = Known(kTransports, step.transport);
  for (const auto& [operation, bytes] : step.bytes_moved) {
    bytes_moved_.at({transport, Known(kOperations, operation)})
        ->Increment(static_cast<double>(bytes));
  }
}

void WorkerMetrics::ObserveCheckpoint(bool failed, absl::Duration duration, absl::Duration stall) {
  checkpoint_stall_seconds_.Observe(absl::ToDoubleSeconds(stall));
  if (failed) {
    checkpoint_failures_.Increment();
  } else {
    checkpoint_seconds_.Observe(absl::ToDoubleSeconds(duration));
  }
}

void WorkerMetrics::CountDroppedLine() { lines_dropped_.Increment(); }

void WorkerMetrics::ObserveStart() { trainer_starts_.Increment(); }

void WorkerMetrics::ObserveExit(ExitCause cause) { trainer_exits_.at(cause)->Increment(); }

void WorkerMetrics::SetConnected(bool connected) { connected_.Set(connected ? 1 : 0); }

}  // namespace esteira
