#pragma once

#include "common/plan/job_spec.h"
#include "common/plan/plan.h"
#include "worker/engine/engine.h"

namespace esteira {

// A plan at toy width, with a job that it is for.
struct Toy {
  JobSpec job;
  Plan plan;
  int replicas_left_out = 0;
};

// The plan's own programs on a model of the same family, depth and tying, but a few elements wide:
// the same stages, chunks, schedule, micro-batches, ZeRO level, windows, joins and recomputation.
// Shards do not divide its parameters evenly. Above `most_ranks`, whole replicas are left out, the
// last ones, but never the second; the others run what they would have run. `numerics` and
// `precision` take the place of the plan's; exact ones with gradients that travel in full. Pure.
Toy AtToyWidth(const JobSpec& job, const Plan& plan, Numerics numerics, Precision precision,
               int most_ranks);

// Samples as a pure function of their number: tokens at random, with -100 in place of unequal
// numbers of targets; every fifth sample has no valid target at all.
SampleReader RandomSamples(const JobSpec& job);

}  // namespace esteira
