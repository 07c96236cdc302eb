// The checks `peers` and `pairing`. Once every exchange that the data flow needs is there once on
// its stage, and names the right peer, sends and receives match one to one.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kPeers[] = "peers";
constexpr char kPairing[] = "pairing";

// The item on the other side of an exchange.
int Neighbour(const Instruction& instruction) {
  const bool next = instruction.op == Op::kSendAct || instruction.op == Op::kRecvGrad;
  return next ? instruction.unit + 1 : instruction.unit - 1;
}

absl::Status CheckTiePeer(const Subject& subject, size_t index) {
  const Context& context = subject.context;
  const Instruction& tie = subject.program.instructions[index];
  const int other = context.OtherEnd(tie.unit);
  if (context.Holds(subject.program, other)) {
    if (tie.op == Op::kTieParameter)
      return FaultAt(kPeers, subject, index, "no copy between ends on one stage");
    if (tie.peer != -1 || context.unit(tie.unit).owner == -1) {
      return FaultAt(kPeers, subject, index,
                     absl::StrCat("unit ", TiedHeadEnd(context.plan.model),
                                  " without peer: both ends are here"));
    }
    return absl::OkStatus();
  }
  const int stage = context.StageOf(other);
  if (tie.peer == stage) return absl::OkStatus();
  return FaultAt(kPeers, subject, index,
                 absl::StrCat("peer ", stage, ", which holds unit ", other));
}

absl::Status CheckPeer(const Subject& subject, size_t index) {
  const Context& context = subject.context;
  const Instruction& instruction = subject.program.instructions[index];
  const int neighbour = Neighbour(instruction);
  if (neighbour < 0 || neighbour >= context.num_items()) {
    return FaultAt(kPeers, subject, index, "a unit with a neighbour on this side");
  }
  const int stage = context.StageOf(neighbour);
  if (stage == subject.program.stage) {
    return FaultAt(kPeers, subject, index,
                   absl::StrCat("no exchange: unit ", neighbour, " is on this stage"));
  }
  if (instruction.peer == stage) return absl::OkStatus();
  return FaultAt(kPeers, subject, index,
                 absl::StrCat("peer ", stage, ", which holds unit ", neighbour));
}

absl::Status CheckPresent(const Subject& subject, Op op, int unit, int neighbour) {
  for (int j = 0; j < subject.context.num_micro_batches; ++j) {
    if (subject.positions.At(op, unit, j) != -1) continue;
    return Fault(
        kPairing, subject,
        absl::StrCat("one ", OpName(op), " of unit ", unit, ", micro-batch ", j, ": stage ",
                     subject.context.StageOf(neighbour), " holds unit ", neighbour));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPeers(const Subject& subject) {
  for (size_t i = 0; i < subject.program.instructions.size(); ++i) {
    const Op op = subject.program.instructions[i].op;
    if (IsPointToPoint(op)) RETURN_IF_ERROR(CheckPeer(subject, i));
    if (op == Op::kTieGradient || op == Op::kTieParameter)
      RETURN_IF_ERROR(CheckTiePeer(subject, i));
  }
  return absl::OkStatus();
}

absl::Status CheckPairing(const Subject& subject) {
  for (size_t index : subject.positions.repeated()) {
    if (IsPointToPoint(subject.program.instructions[index].op)) {
      return FaultAt(kPairing, subject, index, "it only once");
    }
  }
  const Context& context = subject.context;
  for (int unit = 0; unit < context.num_items(); ++unit) {
    if (!context.Holds(subject.program, unit)) continue;
    if (unit > 0 && !context.Holds(subject.program, unit - 1)) {
      RETURN_IF_ERROR(CheckPresent(subject, Op::kRecvAct, unit, unit - 1));
      if (subject.train) RETURN_IF_ERROR(CheckPresent(subject, Op::kSendGrad, unit, unit - 1));
    }
    if (unit + 1 < context.num_items() && !context.Holds(subject.program, unit + 1)) {
      RETURN_IF_ERROR(CheckPresent(subject, Op::kSendAct, unit, unit + 1));
      if (subject.train) RETURN_IF_ERROR(CheckPresent(subject, Op::kRecvGrad, unit, unit + 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira::validate
