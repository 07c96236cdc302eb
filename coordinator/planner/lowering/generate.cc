#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

absl::Status CheckLayout(const ModelSpec& model, const Layout& layout) {
  if (layout.stages < 1 || layout.replicas < 1 || layout.chunks_per_stage < 1) {
    return absl::InvalidArgumentError("a layout has at least one stage, chunk and replica");
  }
  if (layout.policies.size() != static_cast<size_t>(layout.stages)) {
    return absl::InvalidArgumentError("a layout has a policy for each stage");
  }
  if (layout.global_batch_size < 1 || layout.micro_batch_size < 1 || layout.sequence_length < 1) {
    return absl::InvalidArgumentError("a layout has at least one sequence of one token");
  }
  const std::vector<int>& bounds = layout.boundaries;
  const bool ends = bounds.size() == static_cast<size_t>(layout.num_chunks()) + 1 &&
                    bounds.front() == 0 && bounds.back() == NumComputeUnits(model);
  if (!ends ||
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end()) {
    return absl::InvalidArgumentError(
        "the boundaries of a layout ascend from 0 to the number of compute units");
  }
  return absl::OkStatus();
}

absl::Status CheckPipeline(const Layout& layout, const PipelineOps& pipeline) {
  const bool fits = pipeline.ops.size() == static_cast<size_t>(layout.stages) &&
                    pipeline.stage_of_chunk.size() == static_cast<size_t>(layout.num_chunks());
  const auto is_stage = [&](int stage) { return stage >= 0 && stage < layout.stages; };
  if (fits && std::all_of(pipeline.stage_of_chunk.begin(), pipeline.stage_of_chunk.end(), is_stage))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "schedule \"", layout.schedule, "\" has ", pipeline.stage_of_chunk.size(), " chunks on ",
      pipeline.ops.size(), " stages, and the layout ", layout.num_chunks(), " on ", layout.stages));
}

std::vector<Program> MakePrograms(const ModelSpec& model, const Layout& layout,
                                  const PipelineOps& pipeline) {
  std::vector<Program> programs;
  for (int stage = 0; stage < layout.stages; ++stage) {
    Program program;
    program.stage = stage;
    program.units = HeldUnits(model, layout, pipeline, stage);
    for (const ChunkOp& op : pipeline.ops[static_cast<size_t>(stage)]) {
      Instruction instruction;
      instruction.op = op.op;
      instruction.unit = op.chunk;
      instruction.micro_batch = op.micro_batch;
      program.instructions.push_back(instruction);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace

std::vector<int> HeldUnits(const ModelSpec& model, const Layout& layout,
                           const PipelineOps& pipeline, int stage) {
  std::vector<int> units;
  for (size_t chunk = 0; chunk < pipeline.stage_of_chunk.size(); ++chunk) {
    if (pipeline.stage_of_chunk[chunk] != stage) continue;
    for (int u = layout.boundaries[chunk]; u < layout.boundaries[chunk + 1]; ++u)
      units.push_back(u);
  }
  if (units.empty() || !model.tie_embeddings) return units;
  const int head = NumComputeUnits(model) - 1;
  const bool holds_embedding = units.front() == 0;
  const bool holds_head = units.back() == head;
  if (holds_embedding) units.push_back(TiedEmbeddingEnd(model));
  if (holds_head) units.push_back(TiedHeadEnd(model));
  return units;
}

absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision,
                              const PipelineOps& pipeline) {
  RETURN_IF_ERROR(CheckLayout(model, layout));
  RETURN_IF_ERROR(CheckPipeline(layout, pipeline));
  Plan plan;
  plan.model = model;
  plan.layout = layout;
  plan.precision = precision;
  plan.train = MakePrograms(model, layout, pipeline);
  const PipelineOps forward{
      pipeline.stage_of_chunk,
      ForwardOnlySchedule(pipeline.stage_of_chunk, layout.stages, layout.num_micro_batches())};
  plan.evaluate = MakePrograms(model, layout, forward);
  return plan;
}

absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision) {
  RETURN_IF_ERROR(CheckLayout(model, layout));
  const Schedule* schedule = FindSchedule(layout.schedule);
  if (schedule == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule \"", layout.schedule, "\" is not built in; use one of ", ScheduleNames()));
  }
  return Generate(
      model, layout, precision,
      schedule->generate({layout.stages, layout.chunks_per_stage, layout.num_micro_batches()}));
}

}  // namespace esteira
