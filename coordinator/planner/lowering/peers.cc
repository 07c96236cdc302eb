#include "coordinator/planner/lowering/peers.h"

namespace esteira {

std::vector<int> RanksOfUnits(const Plan& plan, int replica) {
  std::vector<int> ranks(static_cast<size_t>(NumComputeUnits(plan.model)), -1);
  for (const Program& program : plan.train) {
    if (program.replica != replica) continue;
    for (int unit : program.units) {
      if (static_cast<size_t>(unit) < ranks.size()) ranks[static_cast<size_t>(unit)] = program.rank;
    }
  }
  return ranks;
}

std::optional<Instruction> SendAfter(const std::vector<int>& rank_of_unit, int rank,
                                     const Instruction& instruction) {
  const bool forward = instruction.op == Op::kForward;
  const bool backward = instruction.op == Op::kBackward || instruction.op == Op::kBackwardInput;
  if (!forward && !backward) return std::nullopt;
  const int neighbour = forward ? instruction.unit + 1 : instruction.unit - 1;
  if (neighbour < 0 || neighbour >= static_cast<int>(rank_of_unit.size())) return std::nullopt;
  Instruction send;
  send.op = forward ? Op::kSendAct : Op::kSendGrad;
  send.unit = instruction.unit;
  send.micro_batch = instruction.micro_batch;
  send.peer = rank_of_unit[static_cast<size_t>(neighbour)];
  if (send.peer == rank) return std::nullopt;
  return send;
}

Instruction ReceiveOf(const Instruction& send, int sender) {
  Instruction receive = send;
  receive.op = send.op == Op::kSendAct ? Op::kRecvAct : Op::kRecvGrad;
  receive.unit = send.op == Op::kSendAct ? send.unit + 1 : send.unit - 1;
  receive.peer = sender;
  return receive;
}

}  // namespace esteira
