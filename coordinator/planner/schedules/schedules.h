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

// By stage, in order.
using StageOps = std::vector<std::vector<ChunkOp>>;

// Where the chunks are, and what each stage does. Chunk c comes before chunk c + 1 in the model.
// The weight gradients of a chunk are added in ascending order of micro-batches, so that a schedule
// changes no sum.
struct PipelineOps {
  std::vector<int> stage_of_chunk;
  StageOps ops;
  bool operator==(const PipelineOps&) const = default;
};

// What a schedule is made for; all at least 1, and any combination of them works.
struct PipelineShape {
  int stages = 1;
  int chunks_per_stage = 1;
  int micro_batches = 1;
};

PipelineOps GpipeSchedule(const PipelineShape& shape);
PipelineOps OneForwardOneBackwardSchedule(const PipelineShape& shape);
PipelineOps InterleavedSchedule(const PipelineShape& shape);
PipelineOps ZbH1Schedule(const PipelineShape& shape);
PipelineOps ZbH2Schedule(const PipelineShape& shape);
PipelineOps ZbVSchedule(const PipelineShape& shape);
PipelineOps VHalfSchedule(const PipelineShape& shape);
PipelineOps VMinSchedule(const PipelineShape& shape);
PipelineOps DualPipeVSchedule(const PipelineShape& shape);

struct Schedule {
  const char* name;
  int min_chunks_per_stage;
  int max_chunks_per_stage;
  PipelineOps (*generate)(const PipelineShape& shape);
};

// What `parallelism.pipeline_schedule` may name, besides `auto` and `csv:PATH`; nullptr when `name`
// is not among them.
const std::vector<Schedule>& TrainingSchedules();
const Schedule* FindSchedule(absl::string_view name);
std::string ScheduleNames();  // "gpipe, 1f1b, ..."

inline constexpr absl::string_view kAutoSchedule = "auto";
inline constexpr absl::string_view kCsvPrefix = "csv:";

// Of programs that evaluate: every micro-batch forward, nothing kept. Not a choice of the user.
StageOps ForwardOnlySchedule(const std::vector<int>& stage_of_chunk, int stages, int micro_batches);

// Chunk c on stage c modulo stages.
std::vector<int> RoundRobinPlacement(const PipelineShape& shape);
// Forth and back: with two chunks a stage, stage s holds chunks s and 2 * stages - 1 - s, so that
// the first stage holds both ends of the model and the last stage two neighbours.
std::vector<int> WavePlacement(const PipelineShape& shape);

// The same schedule without micro-batches from `micro_batches` on.
PipelineOps KeepMicroBatches(PipelineOps pipeline, int micro_batches);

}  // namespace esteira
