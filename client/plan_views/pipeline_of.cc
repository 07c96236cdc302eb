#include "client/plan_views/pipeline_of.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace esteira {
namespace {

int ChunkOf(const std::vector<int>& boundaries, int unit) {
  const auto above = std::upper_bound(boundaries.begin(), boundaries.end(), unit);
  return static_cast<int>(above - boundaries.begin()) - 1;
}

// An operation of a chunk begins with the first of its units. Units that cannot be split (the
// embedding, the head) are passed over where the chunk's others are.
std::vector<ChunkOp> OpsOf(const Program& program, const std::vector<int>& boundaries) {
  std::set<std::pair<int, int>> split;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op != Op::kBackwardInput) continue;
    split.emplace(ChunkOf(boundaries, instruction.unit), instruction.micro_batch);
  }
  std::vector<ChunkOp> ops;
  std::set<std::tuple<Op, int, int>> seen;
  for (const Instruction& instruction : program.instructions) {
    if (!IsCompute(instruction.op) || instruction.op == Op::kRecompute) continue;
    const int chunk = ChunkOf(boundaries, instruction.unit);
    const int micro_batch = instruction.micro_batch;
    if (instruction.op == Op::kBackward && split.count({chunk, micro_batch}) != 0) continue;
    if (!seen.emplace(instruction.op, chunk, micro_batch).second) continue;
    ops.push_back({instruction.op, chunk, micro_batch});
  }
  return ops;
}

}  // namespace

PipelineOps PipelineOf(const Plan& plan) {
  PipelineOps pipeline;
  pipeline.ops.resize(static_cast<size_t>(plan.layout.stages));
  pipeline.stage_of_chunk.resize(static_cast<size_t>(plan.layout.num_chunks()));
  for (const Program& program : plan.train) {
    std::vector<ChunkOp> ops = OpsOf(program, plan.layout.boundaries);
    for (const ChunkOp& op : ops) {
      pipeline.stage_of_chunk[static_cast<size_t>(op.chunk)] = program.stage;
    }
    pipeline.ops[static_cast<size_t>(program.stage)] = std::move(ops);
  }
  return pipeline;
}

}  // namespace esteira
