// Units whose passes take a time that was given, for trials of schedules and of uneven clusters.
#pragma once

#include <memory>

#include "worker/device/synthetic/pacer.h"
#include "worker/model/unit_compute.h"

namespace esteira {

// How long the passes of synthetic units take.
struct SyntheticPace {
  // F, I, W and R of a block take this long each, whatever its sizes; those of the embedding and
  // the head take no time. 0: by `flops`.
  double pass_seconds = 0;
  double flops = 0;  // every pass takes its floating point operations (common/plan/sizes.h) by it
};

// Units that compute nothing: y and dx become zero, gradients stay as they are, and the head counts
// the valid targets with a loss of zero. An empty micro-batch takes no time. Host memory only.
// `pacer` is shared by all units of a compute stream.
UnitFactory SyntheticUnits(const SyntheticPace& pace, std::shared_ptr<Pacer> pacer);

// Units of `factory` each of whose passes takes `factor` (at least 1) times as long as it would.
UnitFactory SlowedUnits(UnitFactory factory, double factor, std::shared_ptr<Pacer> pacer);

}  // namespace esteira
