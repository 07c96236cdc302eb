// Small units share a round of messages: their collectives are joined, so that the latency is paid
// once. A group is no larger than one bucket, nor than the largest unit of its rank, whose scratch
// it uses.
//
// Joined are the gathers in place at the end of a step, and reductions of windows that are the sums
// themselves. What has a slot is not: a window held for longer, or parameters gathered earlier,
// would cost a whole buffer.
#include <algorithm>
#include <utility>

#include "common/plan/shard_map.h"
#include "common/plan/sizes.h"
#include "coordinator/planner/lowering/lowering.h"

namespace esteira {
namespace {

class BucketPass {
 public:
  BucketPass(const Plan& plan, const std::vector<UnitSpec>& units, const Program& program)
      : units_(units), replicas_(plan.layout.replicas) {
    int64_t largest = 0;
    for (int unit : program.units) largest = std::max(largest, PaddedElements(unit));
    const auto limit = [largest](int64_t bytes_per_element) {
      return std::min(largest, kBucketBytes / bytes_per_element);
    };
    if (PlacementOf(plan.layout.zero).whole_parameters) {
      gather_limit_ = limit(BytesOf(plan.precision));
    }
    if (!HasWindowSlots(plan.layout, program.stage)) {
      reduce_limit_ = limit(BytesOf(SumType(plan.layout.numerics)));
    }
  }

  // Each is joined to the one ahead of it on its queue as long as their group stays within the
  // limit.
  void Join(std::vector<Instruction>& instructions) const {
    Instruction* ahead = nullptr;
    int64_t elements = 0;  // of the group of `ahead`
    for (Instruction& instruction : instructions) {
      if (QueueOf(instruction.op) != Queue::kShard || instruction.op == Op::kRelease) continue;
      const int64_t limit = LimitOf(instruction.op);
      if (limit == 0) {
        ahead = nullptr;
        continue;
      }
      const int64_t own = PaddedElements(instruction.unit);
      const bool joins = ahead != nullptr && ahead->op == instruction.op && elements + own <= limit;
      if (joins) ahead->joined = true;
      elements = joins ? elements + own : own;
      ahead = &instruction;
    }
  }

 private:
  int64_t PaddedElements(int unit) const {
    return ShardMap(units_[static_cast<size_t>(unit)].flat_elements, replicas_).padded_elements();
  }
  // Elements of a group of this op; 0: nothing is joined.
  int64_t LimitOf(Op op) const {
    if (op == Op::kGather) return gather_limit_;
    return op == Op::kReduce ? reduce_limit_ : 0;
  }

  const std::vector<UnitSpec>& units_;
  const int replicas_;
  int64_t gather_limit_ = 0;
  int64_t reduce_limit_ = 0;
};

// What is joined stands directly before the next of its group. That is later by what lies between,
// none of which touches its unit: the one window of the step has ended.
std::vector<Instruction> SideBySide(const std::vector<Instruction>& instructions) {
  std::vector<Instruction> result, held;
  for (const Instruction& instruction : instructions) {
    if (instruction.joined) {
      held.push_back(instruction);
      continue;
    }
    if (!held.empty() && held.back().op == instruction.op) {
      result.insert(result.end(), held.begin(), held.end());
      held.clear();
    }
    result.push_back(instruction);
  }
  return result;
}

}  // namespace

absl::StatusOr<Plan> Bucket(Plan plan) {
  if (plan.layout.replicas == 1) return plan;  // no messages, no latency
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) {
      BucketPass(plan, units, program).Join(program.instructions);
      program.instructions = SideBySide(program.instructions);
    }
  }
  return plan;
}

}  // namespace esteira
