// Communication gets time: receives stand one compute instruction earlier than they must, gathers
// as many as the stage's lookahead says, and reductions as many later. That is what makes two
// buffers where one would do, and lets queues run beside each other. A unit has one gathered buffer
// and one window at a time, so nothing moves past the end of the one before.
#include <utility>

#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

using Instructions = std::vector<Instruction>;

// Position of the compute instruction nearest to `i` in `step` direction (1 or -1); -1 when there
// is none.
int NearestCompute(const Instructions& instructions, int i, int step) {
  for (i += step; i >= 0 && i < static_cast<int>(instructions.size()); i += step) {
    if (IsCompute(instructions[static_cast<size_t>(i)].op)) return i;
  }
  return -1;
}

bool Has(const Instructions& instructions, int begin, int end, Op op, int unit) {
  for (int i = begin; i < end; ++i) {
    const Instruction& instruction = instructions[static_cast<size_t>(i)];
    if (instruction.op == op && instruction.unit == unit) return true;
  }
  return false;
}

// The compute instruction before which instruction `i` may stand, or -1 to leave it.
int Earlier(const Instructions& instructions, int i, bool receives) {
  const Instruction& instruction = instructions[static_cast<size_t>(i)];
  const bool receive = instruction.op == Op::kRecvAct || instruction.op == Op::kRecvGrad;
  if (!(receive && receives) && instruction.op != Op::kGather) return -1;
  if (NearestCompute(instructions, i, 1) < 0) return -1;  // the end of the step
  const int before = NearestCompute(instructions, i, -1);
  if (before < 0 || Has(instructions, before, i, Op::kRelease, instruction.unit)) return -1;
  return before;
}

// The compute instruction after which instruction `i` may stand, or -1 to leave it.
int Later(const Instructions& instructions, int i) {
  const Instruction& instruction = instructions[static_cast<size_t>(i)];
  if (instruction.op != Op::kReduce) return -1;
  const int next = NearestCompute(instructions, i, 1);
  if (next < 0 || Has(instructions, i, next, Op::kClear, instruction.unit)) return -1;
  return next;
}

// One compute instruction of time for all that may move.
Instructions Move(const Instructions& instructions, bool window_slots, bool receives) {
  std::vector<Instructions> before(instructions.size()), after(instructions.size());
  std::vector<bool> moved(instructions.size(), false);
  for (int i = 0; i < static_cast<int>(instructions.size()); ++i) {
    const Instruction& instruction = instructions[static_cast<size_t>(i)];
    const int earlier = Earlier(instructions, i, receives);
    const int later = window_slots ? Later(instructions, i) : -1;
    if (earlier >= 0) before[static_cast<size_t>(earlier)].push_back(instruction);
    if (later >= 0) after[static_cast<size_t>(later)].push_back(instruction);
    moved[static_cast<size_t>(i)] = earlier >= 0 || later >= 0;
  }
  Instructions result;
  for (size_t i = 0; i < instructions.size(); ++i) {
    result.insert(result.end(), before[i].begin(), before[i].end());
    if (!moved[i]) result.push_back(instructions[i]);
    result.insert(result.end(), after[i].begin(), after[i].end());
  }
  return result;
}

}  // namespace

bool HasWindowSlots(const Layout& layout, int stage) {
  const int size = layout.policy(stage).reduce_every;
  const bool one_window = size == kAll || size >= layout.num_micro_batches();
  return !(one_window && PlacementOf(layout.zero).whole_sums);
}

absl::StatusOr<Plan> Overlap(Plan plan) {
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) {
      const bool window_slots = HasWindowSlots(plan.layout, program.stage);
      for (int i = 0; i < plan.layout.policy(program.stage).lookahead; ++i) {
        program.instructions = Move(program.instructions, window_slots, /*receives=*/i == 0);
      }
    }
  }
  return plan;
}

}  // namespace esteira
