// The sends of a replica in one global order, and each receive in the same order. Whatever the
// schedule, sender and receiver then agree on every queue, so FIFO queues with rendezvous cannot
// block each other.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/lowering/peers.h"

namespace esteira {
namespace {

using Key = std::tuple<Op, int, int>;  // op, unit, micro-batch

Key KeyOf(const Instruction& instruction) {
  return {instruction.op, instruction.unit, instruction.micro_batch};
}

// The receive that `instruction` cannot start without, if its operand comes from another rank.
Key NeededBy(const Instruction& instruction) {
  const Op receive = instruction.op == Op::kForward ? Op::kRecvAct : Op::kRecvGrad;
  return {receive, instruction.unit, instruction.micro_batch};
}

bool ReadsNeighbour(Op op) {
  return op == Op::kForward || op == Op::kBackward || op == Op::kBackwardInput;
}

// The receives of every rank of one replica, in the global order: the ranks take turns, an
// instruction a turn, and an instruction waits until its operand was sent.
class GlobalOrder {
 public:
  explicit GlobalOrder(std::vector<Program*> programs)
      : programs_(std::move(programs)), next_(programs_.size(), 0) {
    for (size_t i = 0; i < programs_.size(); ++i) {
      index_of_rank_[programs_[i]->rank] = i;
      for (const Instruction& instruction : programs_[i]->instructions) {
        if (!IsSend(instruction.op)) continue;
        const Instruction receive = ReceiveOf(instruction, programs_[i]->rank);
        pending_[{instruction.peer, KeyOf(receive)}] = true;
      }
    }
  }

  // Receives by position in `programs`; an error when the schedule waits for itself.
  absl::StatusOr<std::vector<std::vector<Instruction>>> Run() {
    receives_.resize(programs_.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t i = 0; i < programs_.size(); ++i) moved = Advance(i) || moved;
    }
    for (size_t i = 0; i < programs_.size(); ++i) {
      if (next_[i] == programs_[i]->instructions.size()) continue;
      return absl::InvalidArgumentError(absl::StrCat("order: rank ", programs_[i]->rank,
                                                     " waits for ever before ",
                                                     ToText(programs_[i]->instructions[next_[i]])));
    }
    return std::move(receives_);
  }

 private:
  bool Advance(size_t i) {
    const Program& program = *programs_[i];
    if (next_[i] == program.instructions.size()) return false;
    const Instruction& instruction = program.instructions[next_[i]];
    if (ReadsNeighbour(instruction.op)) {
      const auto needed = pending_.find({program.rank, NeededBy(instruction)});
      if (needed != pending_.end() && needed->second) return false;
    }
    if (IsSend(instruction.op)) {
      const Instruction receive = ReceiveOf(instruction, program.rank);
      pending_[{instruction.peer, KeyOf(receive)}] = false;
      receives_[index_of_rank_.at(instruction.peer)].push_back(receive);
    }
    ++next_[i];
    return true;
  }

  std::vector<Program*> programs_;
  std::vector<size_t> next_;
  std::map<int, size_t> index_of_rank_;
  std::map<std::pair<int, Key>, bool>
      pending_;  // by receiving rank: whether it is still to be sent
  std::vector<std::vector<Instruction>> receives_;
};

void InsertSends(Program& program, const std::vector<int>& rank_of_unit) {
  std::vector<Instruction> instructions;
  for (const Instruction& instruction : program.instructions) {
    instructions.push_back(instruction);
    const std::optional<Instruction> send = SendAfter(rank_of_unit, program.rank, instruction);
    if (send.has_value()) instructions.push_back(*send);
  }
  program.instructions = std::move(instructions);
}

// Each receive directly before its consumer, or before a consumer of a receive that comes later on
// the same queue.
void Place(Program& program, const std::vector<Instruction>& receives) {
  std::map<Key, size_t> consumer;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (ReadsNeighbour(instruction.op)) consumer[NeededBy(instruction)] = i;
  }
  std::vector<std::vector<Instruction>> before(program.instructions.size());
  std::array<size_t, kNumQueues> latest;
  latest.fill(program.instructions.size());
  for (auto receive = receives.rbegin(); receive != receives.rend(); ++receive) {
    size_t& position = latest[static_cast<size_t>(QueueOf(receive->op))];
    position = std::min(position, consumer.at(KeyOf(*receive)));
    before[position].push_back(*receive);
  }
  std::vector<Instruction> instructions;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    instructions.insert(instructions.end(), before[i].rbegin(), before[i].rend());
    instructions.push_back(program.instructions[i]);
  }
  program.instructions = std::move(instructions);
}

}  // namespace

absl::StatusOr<Plan> PointToPoint(Plan plan) {
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (int replica = 0; replica < plan.layout.replicas; ++replica) {
      const std::vector<int> rank_of_unit = RanksOfUnits(plan, replica);
      std::vector<Program*> members;
      for (Program& program : *programs) {
        if (program.replica != replica) continue;
        InsertSends(program, rank_of_unit);
        members.push_back(&program);
      }
      auto receives = GlobalOrder(members).Run();
      if (!receives.ok()) return receives.status();
      for (size_t i = 0; i < members.size(); ++i) Place(*members[i], (*receives)[i]);
    }
  }
  return plan;
}

}  // namespace esteira
