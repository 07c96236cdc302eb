#include "coordinator/planner/lowering/peers.h"

namespace esteira {

std::vector<int> StagesOfUnits(const Plan& plan) {
  std::vector<int> stages(static_cast<size_t>(NumComputeUnits(plan.model)), -1);
  for (const Program& program : plan.train) {
    for (int unit : program.units) {
      if (static_cast<size_t>(unit) < stages.size()) {
        stages[static_cast<size_t>(unit)] = program.stage;
      }
    }
  }
  return stages;
}

std::optional<Instruction> SendAfter(const std::vector<int>& stage_of_unit, int stage,
                                     const Instruction& instruction) {
  const bool forward = instruction.op == Op::kForward;
  const bool backward = instruction.op == Op::kBackward || instruction.op == Op::kBackwardInput;
  if (!forward && !backward) return std::nullopt;
  const int neighbour = forward ? instruction.unit + 1 : instruction.unit - 1;
  if (neighbour < 0 || neighbour >= static_cast<int>(stage_of_unit.size())) return std::nullopt;
  Instruction send;
  send.op = forward ? Op::kSendAct : Op::kSendGrad;
  send.unit = instruction.unit;
  send.micro_batch = instruction.micro_batch;
  send.peer = stage_of_unit[static_cast<size_t>(neighbour)];
  if (send.peer == stage) return std::nullopt;
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
