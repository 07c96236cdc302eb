#include "common/observability/coordinator_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "common/observability/families.h"

namespace esteira {
namespace {

template <typename Builder>
auto& FamilyOf(Builder builder, prometheus::Registry& registry, const char* name,
               const char* help) {
  return builder.Name(name).Help(help).Register(registry);
}

const std::vector<double>& RpcBuckets() {
  static const auto& buckets = *new std::vector<double>(ExponentialBuckets(0.0005, 4, 10));
  return buckets;
}

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(prometheus::Registry& registry,
                                       const std::vector<std::string>& job_states,
                                       const std::vector<std::string>& worker_states)
    : jobs_(FamilyOf(prometheus::BuildGauge(), registry, "esteira_jobs", "Jobs, by state")),
      workers_(FamilyOf(prometheus::BuildGauge(), registry, "esteira_workers",
                        "Registered workers, by state")),
      transitions_(FamilyOf(prometheus::BuildCounter(), registry, "esteira_job_transitions_total",
                            "Changes of a job's state")),
      queue_wait_seconds_(HistogramOf(registry, "esteira_job_queue_wait_seconds",
                                      "Time from a job's submission until its workers were chosen",
                                      ExponentialBuckets(0.1, 4, 10))),
      steps_(CounterOf(registry, "esteira_steps_total", "Training steps recorded, over all jobs")),
      tokens_(CounterOf(registry, "esteira_tokens_total", "Tokens trained on, over all jobs")),
      stale_messages_(
          CounterOf(registry, "esteira_stale_messages_total",
                    "Worker messages dropped because their epoch, incarnation or job is over")),
      commit_seconds_(HistogramOf(registry, "esteira_store_commit_seconds",
                                  "Time to make a group of changes durable",
                                  ExponentialBuckets(0.0005, 2, 14))),
      failed_commits_(CounterOf(registry, "esteira_store_failed_commits_total",
                                "Groups of changes that could not be made durable at once")),
      job_loss_(FamilyOf(prometheus::BuildGauge(), registry, "esteira_job_loss",
                         "Training loss of the last step of a running job")),
      job_step_seconds_(FamilyOf(prometheus::BuildGauge(), registry, "esteira_job_step_seconds",
                                 "Duration of the last step of a running job")),
      rpc_handled_(FamilyOf(prometheus::BuildCounter(), registry, "esteira_rpc_handled_total",
                            "RPCs that ended, by method and status code")),
      rpc_seconds_(FamilyOf(prometheus::BuildHistogram(), registry, "esteira_rpc_handling_seconds",
                            "Time from an RPC's start to its end, by method")) {
  for (const std::string& state : job_states) SetJobs(state, 0);
  for (const std::string& state : worker_states) SetWorkers(state, 0);
}

void CoordinatorMetrics::SetJobs(const std::string& state, int64_t count) {
  jobs_.Add({{"state", state}}).Set(static_cast<double>(count));
}

void CoordinatorMetrics::SetWorkers(const std::string& state, int64_t count) {
  workers_.Add({{"state", state}}).Set(static_cast<double>(count));
}

void CoordinatorMetrics::CountTransition(const std::string& from, const std::string& to) {
  transitions_.Add({{"from", from}, {"to", to}}).Increment();
}

void CoordinatorMetrics::ObserveQueueWait(absl::Duration wait) {
  queue_wait_seconds_.Observe(absl::ToDoubleSeconds(wait));
}

void CoordinatorMetrics::ObserveStep(const std::string& job, double loss, double step_seconds,
                                     int64_t tokens) {
  steps_.Increment();
  tokens_.Increment(static_cast<double>(tokens));
  absl::MutexLock lock(&mutex_);
  auto it = running_.find(job);
  if (it == running_.end()) {
    if (running_.size() >= kMaxJobSeries) return;
    const JobGauges gauges{&job_loss_.Add({{"job", job}}), &job_step_seconds_.Add({{"job", job}})};
    it = running_.emplace(job, gauges).first;
  }
  it->second.loss->Set(loss);
  it->second.step_seconds->Set(step_seconds);
}

void CoordinatorMetrics::RemoveJob(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  const auto it = running_.find(job);
  if (it == running_.end()) return;
  job_loss_.Remove(it->second.loss);
  job_step_seconds_.Remove(it->second.step_seconds);
  running_.erase(it);
}

void CoordinatorMetrics::CountStaleMessage() { stale_messages_.Increment(); }

void CoordinatorMetrics::ObserveCommit(absl::Duration duration) {
  commit_seconds_.Observe(absl::ToDoubleSeconds(duration));
}

void CoordinatorMetrics::CountFailedCommit() { failed_commits_.Increment(); }

void CoordinatorMetrics::ObserveRpc(const std::string& method, const std::string& code,
                                    absl::Duration duration) {
  rpc_handled_.Add({{"method", method}, {"code", code}}).Increment();
  rpc_seconds_.Add({{"method", method}}, RpcBuckets()).Observe(absl::ToDoubleSeconds(duration));
}

}  // namespace esteira
