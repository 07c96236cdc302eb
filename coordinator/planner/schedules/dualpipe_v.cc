// DualPipeV (DeepSeek-V3 technical report, 2024, folded in half): two chunks a stage, placed as a
// V. In the steady state a forward pass of one chunk stands beside a backward pass of the other, so
// that the communication of each has the computation of the other to hide behind; weight gradients
// are formed apart only where that fills a bubble. Fewer than 2 * stages micro-batches are the same
// schedule without what is missing.
#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "coordinator/planner/schedules/schedules.h"

namespace esteira {
namespace {

// Writes the passes of one stage. Side 0 is the chunk on the way forth, side 1 the one on the way
// back.
class StageWriter {
 public:
  StageWriter(int stages, int stage) : chunks_{stage, 2 * stages - 1 - stage} {}

  void Forward(int side) { ops_.push_back({Op::kForward, Chunk(side), Next(forward_, side)}); }
  void Backward(int side) { ops_.push_back({Op::kBackward, Chunk(side), Next(backward_, side)}); }
  void BackwardInput(int side) {
    const ChunkOp input{Op::kBackwardInput, Chunk(side), Next(backward_, side)};
    ops_.push_back(input);
    pending_.push_back({Op::kBackwardWeight, input.chunk, input.micro_batch});
  }
  void BackwardWeight() {
    ops_.push_back(pending_.front());
    pending_.pop_front();
  }
  std::vector<ChunkOp> Take() { return std::move(ops_); }

 private:
  int Chunk(int side) const { return chunks_[static_cast<size_t>(side)]; }
  static int Next(std::array<int, 2>& counts, int side) {
    return counts[static_cast<size_t>(side)]++;
  }

  const std::array<int, 2> chunks_;
  std::array<int, 2> forward_{}, backward_{};
  std::deque<ChunkOp> pending_;
  std::vector<ChunkOp> ops_;
};

std::vector<ChunkOp> StagePasses(int stages, int stage, int micro_batches) {
  StageWriter write(stages, stage);
  const int distance = stages - 1 - stage;
  const int rest = stage + 1;
  for (int i = 0; i < 2 * distance; ++i) write.Forward(0);
  for (int i = 0; i < rest; ++i) {
    write.Forward(0);
    write.Forward(1);
  }
  for (int i = 0; i < distance; ++i) {
    write.BackwardInput(1);
    write.BackwardWeight();
    write.Forward(1);
  }
  for (int i = 0; i < micro_batches - 2 * stages + rest; ++i) {
    write.Forward(0);
    write.Backward(1);
    write.Forward(1);
    write.Backward(0);
  }
  for (int i = 0; i < distance; ++i) {
    write.Backward(1);
    write.Forward(1);
    write.Backward(0);
  }
  // From the middle on, weight gradients wait for the bubbles of the end.
  for (int pass = 0; pass < 2 * rest; ++pass) {
    const int side = pass % 2 == 0 ? 1 : 0;
    if (pass >= rest) {
      write.BackwardInput(side);
    } else {
      write.Backward(side);
    }
  }
  for (int i = 0; i < distance; ++i) {
    write.BackwardWeight();
    write.BackwardInput(0);
  }
  for (int i = 0; i < rest; ++i) write.BackwardWeight();
  return write.Take();
}

}  // namespace

PipelineOps DualPipeVSchedule(const PipelineShape& shape) {
  PipelineOps pipeline{WavePlacement(shape), {}};
  const int micro_batches = std::max(shape.micro_batches, 2 * shape.stages);
  for (int stage = 0; stage < shape.stages; ++stage) {
    pipeline.ops.push_back(StagePasses(shape.stages, stage, micro_batches));
  }
  return KeepMicroBatches(std::move(pipeline), shape.micro_batches);
}

}  // namespace esteira
