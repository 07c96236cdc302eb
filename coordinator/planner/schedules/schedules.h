// Pipeline schedules: which micro-batch each stage computes when. Pure; knows neither units, ranks
// nor buffers. To add one: a file in this folder, a line in schedules.cc, a golden file.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/plan/instruction.h"

namespace esteira {

// One compute operation on all units of a chunk.
struct ChunkOp {
  Op op = Op::kForward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const ChunkOp&) const = default;
};

// By stage, in order. Backward passes of a chunk come in ascending order of micro-batches.
using StageOps = std::vector<std::vector<ChunkOp>>;

// `stages` and `micro_batches` are at least 1; any combination of them works.
StageOps GpipeSchedule(int stages, int micro_batches);
StageOps OneForwardOneBackwardSchedule(int stages, int micro_batches);
// Of programs that evaluate; not a choice of the user.
StageOps ForwardOnlySchedule(int stages, int micro_batches);

struct Schedule {
  const char* name;
  StageOps (*generate)(int stages, int micro_batches);
};

// What `parallelism.pipeline_schedule` may name; nullptr when `name` is not among them.
const std::vector<Schedule>& TrainingSchedules();
const Schedule* FindSchedule(absl::string_view name);
std::string ScheduleNames();  // "gpipe, 1f1b"

}  // namespace esteira
