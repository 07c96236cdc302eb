#include "coordinator/planner/estimate.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "common/plan/validate.h"
#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

// Activations and gradients beyond what the schedule holds: what communication fills ahead and
// drains behind.
constexpr int64_t kSlack = 6;
// Blocks that are recomputed and not yet done with.
constexpr int64_t kRecomputedAtOnce = 2;
// Part of the communication of a shard queue that computation hides when there is enough of it.
constexpr double kHidden = 0.9;

int Windows(int size, int micro_batches) {
  return size == kAll ? 1 : (micro_batches + size - 1) / size;
}

// Of the slots for gathered units, or for open windows, of these sizes. A unit is alone when it
// opens and closes with one micro-batch, but for those that come early or stay late; units of about
// one size share slots (lowering/slots.cc).
int64_t LiveElements(std::vector<int64_t> elements, int window, int micro_batches, int lookahead) {
  const bool all = window != 1 && micro_batches > 1;
  std::sort(elements.begin(), elements.end(), std::greater<>());
  int64_t live = 0, largest = 0;
  int in_class = 0;
  for (int64_t unit : elements) {
    if (largest == 0 || OpensSizeClass(unit, largest)) {
      largest = unit;
      in_class = 0;
    }
    if (all || in_class++ <= lookahead) live += largest;
  }
  return live;
}

}  // namespace

Estimator::Estimator(const ModelSpec& model, Precision precision, int64_t micro_batch_size,
                     int64_t sequence_length)
    : model_(model),
      precision_(precision),
      units_(MakeUnits(model)),
      activation_bytes_(micro_batch_size * sequence_length * model.hidden_size *
                        BytesOf(precision)) {
  for (int u = 0; u < NumComputeUnits(model); ++u) {
    const UnitSpec& unit = units_[static_cast<size_t>(u)];
    const bool same = u > 1 && unit.kind == UnitKind::kBlock;
    saved_bytes_.push_back(
        same ? saved_bytes_.back()
             : SavedLayout(model, unit, micro_batch_size, sequence_length, precision).bytes);
    workspace_bytes_.push_back(
        same ? workspace_bytes_.back()
             : WorkspaceLayout(model, unit, micro_batch_size, sequence_length, precision).bytes);
  }
}

ChunkCosts Estimator::CostsOf(const Draft& draft, const CostModel& costs) const {
  const Layout& layout = draft.layout;
  ChunkCosts chunk_costs;
  for (size_t c = 0; c < draft.pipeline.stage_of_chunk.size(); ++c) {
    const int stage = draft.pipeline.stage_of_chunk[c];
    double forward = 0, input = 0, weight = 0;
    for (int u = layout.boundaries[c]; u < layout.boundaries[c + 1]; ++u) {
      const auto seconds = [&](Op op) {
        return costs.ComputeSeconds(stage, u, op, layout.micro_batch_size);
      };
      const bool again =
          layout.policy(stage).recompute && units_[static_cast<size_t>(u)].kind == UnitKind::kBlock;
      forward += seconds(Op::kForward);
      input += seconds(Op::kBackwardInput) + (again ? seconds(Op::kRecompute) : 0);
      weight += seconds(Op::kBackwardWeight);
    }
    chunk_costs.forward_seconds.push_back(forward);
    chunk_costs.input_seconds.push_back(input);
    chunk_costs.weight_seconds.push_back(weight);
    chunk_costs.bytes.push_back(layout.boundaries[c + 1] - layout.boundaries[c]);
    const bool last = c + 1 == draft.pipeline.stage_of_chunk.size();
    chunk_costs.link_seconds.push_back(
        last ? 0 : costs.ActivationSeconds(stage, draft.pipeline.stage_of_chunk[c + 1]));
  }
  return chunk_costs;
}

MemoryUse Estimator::MemoryOf(const Draft& draft, int stage, double live_units) const {
  const Layout& layout = draft.layout;
  const StagePolicy& policy = layout.policy(stage);
  const int micro_batches = layout.num_micro_batches();
  const std::vector<int> held = HeldUnits(model_, draft.layout, draft.pipeline, stage);
  int64_t padded = 0, workspace = 0, saved = 0, largest_block = 0, compute_units = 0;
  std::vector<int64_t> elements;
  for (int u : held) {
    const auto index = static_cast<size_t>(u);
    elements.push_back(ShardMap(units_[index].flat_elements, layout.replicas).padded_elements());
    padded = std::max(padded, elements.back());
    if (units_[index].kind == UnitKind::kTied) continue;
    ++compute_units;
    workspace = std::max(workspace, workspace_bytes_[index]);
    if (policy.recompute && units_[index].kind == UnitKind::kBlock) {
      largest_block = saved_bytes_[index];
    } else {
      saved += saved_bytes_[index];
    }
  }
  MemoryUse use = CountStates(units_, held, layout, precision_);
  const auto live = static_cast<int64_t>(std::ceil(live_units));
  // Each unit has its share of the pairs that are alive.
  use.slots = activation_bytes_ * (live + kSlack) + saved * live / compute_units +
              kRecomputedAtOnce * largest_block;
  if (!PlacementOf(layout.zero).whole_parameters) {
    use.slots += BytesOf(precision_) *
                 LiveElements(elements, policy.gather_for, micro_batches, policy.lookahead);
  }
  if (HasWindowSlots(layout, stage)) {
    use.slots += BytesOf(SumType(layout.numerics)) *
                 LiveElements(elements, policy.reduce_every, micro_batches, policy.lookahead);
  }
  use.workspace = workspace + ReduceScratchBytes(padded, layout.replicas, layout.numerics) +
                  GradientScratchBytes(units_, held, layout);
  return use;
}

Estimate Estimator::Of(const Draft& draft, const CostModel& costs,
                       const PipelineTimes& times) const {
  Estimate estimate;
  const Layout& layout = draft.layout;
  const Placement placement = PlacementOf(layout.zero);
  const int micro_batches = layout.num_micro_batches();
  double exposed = 0, update = 0;
  for (int stage = 0; stage < layout.stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    const StagePolicy& policy = layout.policy(stage);
    const int reductions = Windows(policy.reduce_every, micro_batches);
    const int gathers = placement.whole_parameters  ? 0
                        : policy.gather_for == kAll ? 1
                                                    : 2 * Windows(policy.gather_for, micro_batches);
    double communication = 0, last = 0, step = 0;
    for (int u : HeldUnits(model_, draft.layout, draft.pipeline, stage)) {
      if (units_[static_cast<size_t>(u)].flat_elements == 0) continue;
      const double gather = costs.GatherSeconds(stage, u);
      const double reduce = costs.ReduceSeconds(stage, u);
      communication += reductions * reduce + gathers * gather;
      last = std::max(last, reduce);
      step += costs.StepSeconds(stage, u);
      // After the step, where every rank holds whole parameters but sharded states.
      if (placement.whole_parameters && !placement.whole_states) step += gather;
    }
    exposed = std::max({exposed, last, communication - kHidden * times.busy_seconds[s]});
    update = std::max(update, step);
    estimate.memory.push_back(MemoryOf(draft, stage, times.peak_bytes[s]));
  }
  estimate.step_seconds = times.makespan + exposed + update;
  return estimate;
}

}  // namespace esteira
