#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {
namespace {

absl::Status CheckLayout(const ModelSpec& model, const Layout& layout) {
  if (layout.stages < 1 || layout.replicas < 1 || layout.chunks_per_stage != 1) {
    return absl::InvalidArgumentError(
        "a layout has at least one stage and one replica, and one chunk per stage");
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

std::vector<int> HeldUnits(const ModelSpec& model, const Layout& layout, int stage) {
  std::vector<int> units;
  const auto chunk = static_cast<size_t>(stage);
  for (int u = layout.boundaries[chunk]; u < layout.boundaries[chunk + 1]; ++u) units.push_back(u);
  if (!model.tie_embeddings) return units;
  const int head = NumComputeUnits(model) - 1;
  const bool holds_embedding = units.front() == 0;
  const bool holds_head = units.back() == head;
  if (holds_embedding) units.push_back(TiedEmbeddingEnd(model));
  if (holds_head) units.push_back(TiedHeadEnd(model));
  return units;
}

std::vector<MicroBatch> MicroBatchesOf(const Layout& layout, int replica) {
  std::vector<MicroBatch> batches;
  const int64_t count = layout.num_micro_batches();
  for (int64_t j = 0; j < count; ++j) {
    const int64_t first =
        std::min((replica * count + j) * layout.micro_batch_size, layout.global_batch_size);
    batches.push_back({first, std::min(layout.micro_batch_size, layout.global_batch_size - first)});
  }
  return batches;
}

std::vector<Program> MakePrograms(const ModelSpec& model, const Layout& layout,
                                  const StageOps& ops) {
  std::vector<Program> programs;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    Program program;
    program.rank = rank;
    program.stage = layout.StageOfRank(rank);
    program.replica = layout.ReplicaOfRank(rank);
    program.units = HeldUnits(model, layout, program.stage);
    program.micro_batches = MicroBatchesOf(layout, program.replica);
    for (const ChunkOp& op : ops[static_cast<size_t>(program.stage)]) {
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

absl::StatusOr<Plan> Generate(const ModelSpec& model, const Layout& layout, Precision precision) {
  RETURN_IF_ERROR(CheckLayout(model, layout));
  const Schedule* schedule = FindSchedule(layout.schedule);
  if (schedule == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule \"", layout.schedule, "\" is not built in; use one of ", ScheduleNames()));
  }
  const int micro_batches = layout.num_micro_batches();
  Plan plan;
  plan.model = model;
  plan.layout = layout;
  plan.precision = precision;
  plan.train = MakePrograms(model, layout, schedule->generate(layout.stages, micro_batches));
  plan.evaluate = MakePrograms(model, layout, ForwardOnlySchedule(layout.stages, micro_batches));
  return plan;
}

}  // namespace esteira
