#include <utility>

#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

bool Recomputes(const Plan& plan, int stage, int unit) {
  // The embedding keeps next to nothing, and the head's backward pass follows its forward pass at
  // once.
  return plan.layout.policy(stage).recompute && unit > 0 && unit < NumComputeUnits(plan.model) - 1;
}

std::vector<Instruction> ExpandProgram(const Plan& plan, const Program& program) {
  std::vector<Instruction> expanded;
  for (const Instruction& whole : program.instructions) {
    const auto chunk = static_cast<size_t>(whole.unit);
    const int begin = plan.layout.boundaries[chunk];
    const int end = plan.layout.boundaries[chunk + 1];
    for (int i = 0; i < end - begin; ++i) {
      Instruction part = whole;
      part.unit = whole.op == Op::kForward ? begin + i : end - 1 - i;
      const bool starts_backward = whole.op == Op::kBackward || whole.op == Op::kBackwardInput;
      if (starts_backward && Recomputes(plan, program.stage, part.unit)) {
        Instruction again = part;
        again.op = Op::kRecompute;
        expanded.push_back(again);
      }
      expanded.push_back(part);
    }
  }
  return expanded;
}

}  // namespace

absl::StatusOr<Plan> Expand(Plan plan) {
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) program.instructions = ExpandProgram(plan, program);
  }
  return plan;
}

}  // namespace esteira
