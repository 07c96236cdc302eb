#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "worker/communication/collectives.h"
#include "worker/device/device.h"
#include "worker/engine/engine.h"
#include "worker/trainer/replay.h"

namespace esteira {

// Runs the steps of one rank, and runs a bad one again: one with a non-finite value, or, when the
// job has a spike_factor, one whose gradient norm is that many times the median of the steps
// before. The engine leaves the state as it was in both cases, so the second run starts from what
// the first started from, and tells whether the data, the model or a machine is at fault. Neither
// decides what is learned: a spike is applied after it was looked into, and only a step that a
// machine spoilt counts as its second run. Collective: every rank of the epoch runs the same steps.
// Not thread-safe.
class StepRunner {
 public:
  struct Setting {
    const Plan& plan;
    const JobSpec& job;
    int rank = 0;
    absl::Duration operation_timeout;
    // Of a sample of the data, by its index in the whole run.
    std::function<int64_t(int64_t)> sample_number;
  };
  // All outlive it.
  StepRunner(const Setting& setting, Engine& engine, Device& device, Transport& transport);

  struct Outcome {
    StepReport report;
    std::string finding;  // DescribeReplay, of a step that was run again; the same on every rank
    bool spike = false;
  };
  absl::StatusOr<Outcome> Run(int64_t step, const SampleReader& samples, bool hash);

 private:
  double UsualNorm() const;  // 0: not known yet
  double LargestNorm() const;
  absl::StatusOr<std::vector<RankFindings>> Gather(const RankFindings& own);

  const Setting setting_;
  Engine& engine_;
  const std::unique_ptr<Collectives> all_;
  const std::unique_ptr<Stream> stream_;
  std::deque<double> norms_;  // of the last good steps
};

}  // namespace esteira
