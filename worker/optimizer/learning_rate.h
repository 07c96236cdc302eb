#pragma once

#include <cstdint>

#include "common/plan/job_spec.h"

namespace esteira {

// The learning rate of `step` (from 1) of `steps`. Warmup is linear from peak / warmup_steps to
// peak; then cosine or linear to final_ratio * peak at the last step, constant, or wsd: constant,
// then linear over the last decay_steps.
double LearningRate(const LearningRateSchedule& schedule, double peak, int64_t step, int64_t steps);

// The factor that brings a gradient of global norm `norm` within `clip`; 1 when it is, or when clip
// is 0.
double ClipFactor(double norm, double clip);

}  // namespace esteira
