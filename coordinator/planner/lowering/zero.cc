// The ZeRO levels differ only in where GATHER, RELEASE, CLEAR and REDUCE stand; then comes the end
// of the step.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/plan/dependencies.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/lowering/peers.h"

namespace esteira {
namespace {

// Positions of the first and the last instruction that use something of a unit.
struct Interval {
  int unit = -1;
  size_t first = 0;
  size_t last = 0;
};

// Window of a micro-batch when windows have `size` micro-batches.
int WindowOf(int micro_batch, int size) { return size == kAll ? 0 : micro_batch / size; }

bool AddsToGradients(Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; }

bool Holds(const Program& program, int unit) {
  return std::binary_search(program.units.begin(), program.units.end(), unit);
}

// Rewrites one program. Positions are those of its instructions before the pass.
class ZeroPass {
 public:
  ZeroPass(const Plan& plan, const std::vector<UnitSpec>& units, const Program& program)
      : plan_(plan),
        units_(units),
        program_(program),
        placement_(PlacementOf(plan.layout.zero)),
        policy_(plan.layout.policy(program.stage)) {
    before_.resize(program.instructions.size());
    after_.resize(program.instructions.size());
  }

  std::vector<Instruction> Run(bool train) {
    if (train) PlaceReductions();
    if (!placement_.whole_parameters) PlaceGathers();
    std::vector<Instruction> instructions;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      instructions.insert(instructions.end(), before_[i].begin(), before_[i].end());
      instructions.push_back(program_.instructions[i]);
      instructions.insert(instructions.end(), after_[i].begin(), after_[i].end());
    }
    if (train) {
      EndStep(instructions);
    } else {
      instructions.push_back(Sharding(Op::kNorm, -1));
    }
    return instructions;
  }

 private:
  static Instruction Sharding(Op op, int unit, int peer = -1) {
    Instruction instruction;
    instruction.op = op;
    instruction.unit = unit;
    instruction.peer = peer;
    return instruction;
  }

  const UnitSpec& unit(int index) const { return units_[static_cast<size_t>(index)]; }
  bool HoldsBothEnds() const {
    return plan_.model.tie_embeddings && Holds(program_, TiedEmbeddingEnd(plan_.model)) &&
           Holds(program_, TiedHeadEnd(plan_.model));
  }

  void Bracket(const Interval& interval, Op open, Op close) {
    before_[interval.first].push_back(Sharding(open, interval.unit));
    after_[interval.last].push_back(Sharding(close, interval.unit));
  }

  void PlaceReductions() {
    std::map<std::pair<int, int>, Interval> windows;  // by unit and window
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (!AddsToGradients(instruction.op)) continue;
      const int window = WindowOf(instruction.micro_batch, policy_.reduce_every);
      for (int used : unit(instruction.unit).uses) {
        if (unit(used).flat_elements == 0) continue;
        windows.try_emplace({used, window}, Interval{used, i, i}).first->second.last = i;
      }
    }
    for (const auto& [key, interval] : windows) Bracket(interval, Op::kClear, Op::kReduce);
  }

  // By unit, in program order, what one window of micro-batches uses in one direction.
  std::map<int, std::vector<Interval>> Uses() const {
    std::map<std::tuple<int, bool, int>, Interval> uses;  // by unit, direction and window
    size_t position = 0;  // among the compute instructions, so that nothing else separates two uses
    for (const Instruction& instruction : program_.instructions) {
      if (!IsCompute(instruction.op)) continue;
      const bool all = policy_.gather_for == kAll;
      const bool backward = !all && instruction.op != Op::kForward;
      const int window = WindowOf(instruction.micro_batch, policy_.gather_for);
      for (int used : unit(instruction.unit).uses) {
        if (unit(used).flat_elements == 0) continue;
        const int owner = ParametersUnit(units_, program_.units, used);
        uses.try_emplace({owner, backward, window}, Interval{owner, position, position})
            .first->second.last = position;
      }
      ++position;
    }
    std::map<int, std::vector<Interval>> by_unit;
    for (const auto& [key, interval] : uses) by_unit[interval.unit].push_back(interval);
    return by_unit;
  }

  void PlaceGathers() {
    std::vector<size_t> compute;  // position of each compute instruction
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (IsCompute(program_.instructions[i].op)) compute.push_back(i);
    }
    for (auto& [owner, intervals] : Uses()) {
      std::sort(intervals.begin(), intervals.end(),
                [](const Interval& a, const Interval& b) { return a.first < b.first; });
      Interval open = intervals.front();
      for (const Interval& next : intervals) {
        if (next.first > open.last + 1) {
          Bracket({owner, compute[open.first], compute[open.last]}, Op::kGather, Op::kRelease);
          open = next;
        }
        open.last = std::max(open.last, next.last);
      }
      Bracket({owner, compute[open.first], compute[open.last]}, Op::kGather, Op::kRelease);
    }
  }

  // The end of a tied table that the stage holds alone, and the stage of the other end.
  std::vector<Instruction> Tie(Op op) const {
    if (!plan_.model.tie_embeddings) return {};
    const int head = NumComputeUnits(plan_.model) - 1;
    const std::vector<int> stages = StagesOfUnits(plan_);
    if (HoldsBothEnds()) {
      if (op == Op::kTieParameter) return {};
      return {Sharding(op, TiedHeadEnd(plan_.model))};
    }
    if (Holds(program_, TiedEmbeddingEnd(plan_.model))) {
      return {Sharding(op, TiedEmbeddingEnd(plan_.model), stages[static_cast<size_t>(head)])};
    }
    if (Holds(program_, TiedHeadEnd(plan_.model))) {
      return {Sharding(op, TiedHeadEnd(plan_.model), stages[0])};
    }
    return {};
  }

  void EndStep(std::vector<Instruction>& instructions) const {
    std::vector<int> owned;
    for (int held : program_.units) {
      if (unit(held).flat_elements > 0 && unit(held).owner < 0) owned.push_back(held);
    }
    for (const Instruction& tie : Tie(Op::kTieGradient)) instructions.push_back(tie);
    instructions.push_back(Sharding(Op::kNorm, -1));
    for (int held : owned) instructions.push_back(Sharding(Op::kStep, held));
    if (placement_.whole_parameters && !placement_.whole_states) {
      for (int held : owned) instructions.push_back(Sharding(Op::kGather, held));
    }
    for (const Instruction& tie : Tie(Op::kTieParameter)) instructions.push_back(tie);
  }

  const Plan& plan_;
  const std::vector<UnitSpec>& units_;
  const Program& program_;
  const Placement placement_;
  const StagePolicy& policy_;
  std::vector<std::vector<Instruction>> before_, after_;
};

}  // namespace

absl::StatusOr<Plan> Zero(Plan plan) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (Program& program : plan.train) {
    program.instructions = ZeroPass(plan, units, program).Run(/*train=*/true);
  }
  for (Program& program : plan.evaluate) {
    program.instructions = ZeroPass(plan, units, program).Run(/*train=*/false);
  }
  return plan;
}

}  // namespace esteira
