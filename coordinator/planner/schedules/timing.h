// How long a schedule takes and how much it holds, chunk by chunk: the quick look that the search
// for a schedule takes thousands of times. The plan's own times come from the simulator.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

// Of one micro-batch. B is I and W in one.
struct ChunkCosts {
  std::vector<double> forward_seconds;  // by chunk
  std::vector<double> input_seconds;    // by chunk; with recomputation, that too
  std::vector<double> weight_seconds;   // by chunk
  std::vector<double> link_seconds;     // from chunk c to the next one, and back
  std::vector<double> bytes;            // by chunk: held from F to W
  std::vector<double> budget_bytes;     // by stage; empty: no limit

  // Equal passes of one second, chunks of one byte, links that cost nothing.
  static ChunkCosts Unit(int chunks);
  double Seconds(const ChunkOp& op) const;
};

struct PipelineTimes {
  double makespan = 0;
  std::vector<double> busy_seconds;                               // by stage
  std::vector<double> peak_bytes;                                 // by stage
  std::vector<std::vector<std::pair<double, double>>> intervals;  // by stage, by op
  // Share of the stages' time in which they stand idle.
  double bubble_ratio() const;
};

// None when the passes wait for each other for ever.
std::optional<PipelineTimes> TimePipeline(const PipelineOps& pipeline, const ChunkCosts& costs);

bool FitsBudget(const PipelineTimes& times, const ChunkCosts& costs);

}  // namespace esteira
