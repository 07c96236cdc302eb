#include "worker/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace esteira {
namespace {

// How much of the way from `from` to `to` lies behind `step`, in [0, 1].
double Progress(int64_t step, int64_t from, int64_t to) {
  if (step <= from) return 0;
  if (step >= to) return 1;
  return static_cast<double>(step - from) / static_cast<double>(to - from);
}

}  // namespace

double LearningRate(const LearningRateSchedule& schedule, double peak, int64_t step,
                    int64_t steps) {
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const double final_rate = schedule.final_ratio * peak;
  const auto linear = [&](double progress) { return peak + (final_rate - peak) * progress; };
  switch (schedule.decay) {
    case Decay::kCosine: {
      const double angle = std::numbers::pi * Progress(step, warmup, steps);
      return final_rate + (peak - final_rate) * 0.5 * (1 + std::cos(angle));
    }
    case Decay::kLinear: return linear(Progress(step, warmup, steps));
    case Decay::kConstant: return peak;
    case Decay::kWsd:
      return linear(Progress(step, std::max(warmup, steps - schedule.decay_steps), steps));
  }
  return peak;
}

double ClipFactor(double norm, double clip) { return clip == 0 || norm <= clip ? 1 : clip / norm; }

}  // namespace esteira
