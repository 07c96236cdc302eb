// What a second run of a bad step from the same state says about the first. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "worker/engine/engine.h"

namespace esteira {

// What one rank measured of its own part of a step.
struct RankFindings {
  std::string host;
  bool differs = false;  // between the two runs, in any bit
  // Of the second run. By unit: the squared norm of this rank's shard of the gradient. By
  // micro-batch of its replica: zero unless the rank holds the head.
  std::vector<double> unit_squares;
  std::vector<LossSums> losses;
};

struct Replay {
  const Plan& plan;
  StepReport first, second;         // of one rank: what all agree on
  std::vector<RankFindings> ranks;  // by rank
  double usual_norm = 0;            // the median of earlier steps; 0: not known
  // The number of a sample, counted through all of data.train, by its index in the global batch.
  std::function<int64_t(int64_t)> sample_number;
};

// Whether two runs of a step measured the same, to the bit.
bool SameFindings(const StepReport& a, const StepReport& b);

// Two runs from one state can differ by a fault of a machine alone.
bool IsMachineFault(const Replay& replay);

// One sentence or two: what was wrong, whether it came again, and where it is from: the ranks whose
// numbers changed, or the unit, the micro-batch and its samples.
std::string DescribeReplay(const Replay& replay);

}  // namespace esteira
