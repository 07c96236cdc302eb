#include "coordinator/planner/schedules/schedules.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace esteira {
namespace {

constexpr int kAnyChunks = 1 << 16;

}  // namespace

const std::vector<Schedule>& TrainingSchedules() {
  static const auto& schedules = *new std::vector<Schedule>{
      {"1f1b", 1, 1, OneForwardOneBackwardSchedule},
      {"gpipe", 1, 1, GpipeSchedule},
      {"interleaved", 1, kAnyChunks, InterleavedSchedule},
      {"zb_h1", 1, 1, ZbH1Schedule},
      {"zb_h2", 1, 1, ZbH2Schedule},
      {"zb_v", 2, 2, ZbVSchedule},
      {"v_half", 2, 2, VHalfSchedule},
      {"v_min", 2, 2, VMinSchedule},
      {"dualpipe_v", 2, 2, DualPipeVSchedule},
  };
  return schedules;
}

const Schedule* FindSchedule(absl::string_view name) {
  for (const Schedule& schedule : TrainingSchedules()) {
    if (schedule.name == name) return &schedule;
  }
  return nullptr;
}

std::string ScheduleNames() {
  return absl::StrJoin(TrainingSchedules(), ", ", [](std::string* out, const Schedule& schedule) {
    out->append(schedule.name);
  });
}

std::vector<int> RoundRobinPlacement(const PipelineShape& shape) {
  std::vector<int> stages(static_cast<size_t>(shape.stages) *
                          static_cast<size_t>(shape.chunks_per_stage));
  for (size_t c = 0; c < stages.size(); ++c) stages[c] = static_cast<int>(c) % shape.stages;
  return stages;
}

std::vector<int> WavePlacement(const PipelineShape& shape) {
  std::vector<int> stages = RoundRobinPlacement(shape);
  for (size_t c = 0; c < stages.size(); ++c) {
    const bool back = static_cast<int>(c) / shape.stages % 2 == 1;
    if (back) stages[c] = shape.stages - 1 - stages[c];
  }
  return stages;
}

PipelineOps KeepMicroBatches(PipelineOps pipeline, int micro_batches) {
  for (std::vector<ChunkOp>& ops : pipeline.ops) {
    std::erase_if(ops, [&](const ChunkOp& op) { return op.micro_batch >= micro_batches; });
  }
  return pipeline;
}

}  // namespace esteira
