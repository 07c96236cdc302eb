// The abstract machine that runs a plan: per rank one FIFO per queue, dependencies between queues,
// rendezvous between ranks. One rank of each stage stands for all of its stage: the replicas do the
// same, so that each reaches its collectives when the others do. Without durations it proves that a
// plan ends; with them it is the simulator. There is only this one.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace esteira {

struct Interval {
  double start = 0;
  double end = 0;
};

struct Execution {
  double makespan = 0;
  std::vector<std::vector<Interval>> intervals;  // by stage, by instruction
};

// Seconds of one instruction, on the slowest rank of its stage; of a rendezvous, and of NORM, the
// largest over its participants counts.
using DurationFunction = std::function<double(const Program&, const Instruction&)>;

// Runs `programs`, by stage, to the end. A send and its receive start together once both are at the
// head of their queues with their dependencies met; so do all stages' NORM, and all that are
// joined: together they take as long as one after the other. InvalidArgument names what every stage
// waits for when nothing can move ("deadlock: ...").
absl::StatusOr<Execution> RunMachine(const Plan& plan, const std::vector<Program>& programs,
                                     const DurationFunction& duration);

}  // namespace esteira
