// A quick look at a candidate before it is lowered: what its schedule takes chunk by chunk, and how
// many bytes each stage will need, within some per cent. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/schedules/timing.h"

namespace esteira {

// A layout with the schedule and the workers that it is for.
struct Draft {
  Layout layout;
  PipelineOps pipeline;
  std::vector<int> worker_of_rank;
};

struct Estimate {
  double step_seconds = 0;
  std::vector<MemoryUse> memory;  // by stage
};

// Holds what is the same for all drafts of a model and a micro-batch size.
class Estimator {
 public:
  Estimator(const ModelSpec& model, Precision precision, int64_t micro_batch_size,
            int64_t sequence_length);

  // Seconds by chunk of a full micro-batch; of bytes, the number of its units.
  ChunkCosts CostsOf(const Draft& draft, const CostModel& costs) const;
  // `times`: of the draft's pipeline with CostsOf.
  Estimate Of(const Draft& draft, const CostModel& costs, const PipelineTimes& times) const;
  // Of a stage that holds at most `live_units` pairs of a unit and a micro-batch between F and W.
  MemoryUse MemoryOf(const Draft& draft, int stage, double live_units) const;

 private:
  const ModelSpec model_;
  const Precision precision_;
  const std::vector<UnitSpec> units_;
  int64_t activation_bytes_ = 0;
  std::vector<int64_t> saved_bytes_, workspace_bytes_;  // by compute unit
};

}  // namespace esteira
