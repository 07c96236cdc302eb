#pragma once

#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
template <typename T>
class Family;
}  // namespace prometheus

namespace esteira {

// What the coordinator exports. The registry owns the metrics and outlives this. Per-job series
// exist only while the job runs, at most kMaxJobSeries of them at once. Thread-safe.
class CoordinatorMetrics {
 public:
  static constexpr size_t kMaxJobSeries = 100;

  // `job_states` and `worker_states`: the values of the `state` labels.
  CoordinatorMetrics(prometheus::Registry& registry, const std::vector<std::string>& job_states,
                     const std::vector<std::string>& worker_states);

  void SetJobs(const std::string& state, int64_t count);
  void SetWorkers(const std::string& state, int64_t count);
  void CountTransition(const std::string& from, const std::string& to);
  void ObserveQueueWait(absl::Duration wait);
  void ObserveStep(const std::string& job, double loss, double step_seconds, int64_t tokens);
  void RemoveJob(const std::string& job);
  void CountStaleMessage();
  void ObserveCommit(absl::Duration duration);
  void CountFailedCommit();
  // `code` is the status code's name, e.g. "NOT_FOUND".
  void ObserveRpc(const std::string& method, const std::string& code, absl::Duration duration);

 private:
  struct JobGauges {
    prometheus::Gauge* loss;
    prometheus::Gauge* step_seconds;
  };

  prometheus::Family<prometheus::Gauge>& jobs_;
  prometheus::Family<prometheus::Gauge>& workers_;
  prometheus::Family<prometheus::Counter>& transitions_;
  prometheus::Histogram& queue_wait_seconds_;
  prometheus::Counter& steps_;
  prometheus::Counter& tokens_;
  prometheus::Counter& stale_messages_;
  prometheus::Histogram& commit_seconds_;
  prometheus::Counter& failed_commits_;
  prometheus::Family<prometheus::Gauge>& job_loss_;
  prometheus::Family<prometheus::Gauge>& job_step_seconds_;
  prometheus::Family<prometheus::Counter>& rpc_handled_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;

  absl::Mutex mutex_;
  std::map<std::string, JobGauges> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace esteira
