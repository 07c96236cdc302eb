#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "order";

// `second` stands after `first`, if both exist: what is missing is the matter of other checks.
absl::Status CheckAfter(const Subject& subject, int32_t first, int32_t second) {
  if (first == -1 || second == -1 || first < second) return absl::OkStatus();
  const Instruction& earlier = subject.program.instructions[static_cast<size_t>(first)];
  return FaultAt(kCheck, subject, static_cast<size_t>(second),
                 absl::StrCat("it after ", ToText(earlier)));
}

// Between neighbours on one rank.
absl::Status CheckNeighbours(const Subject& subject, int item, int micro_batch) {
  const Positions& positions = subject.positions;
  RETURN_IF_ERROR(CheckAfter(subject, positions.At(Op::kForward, item, micro_batch),
                             positions.At(Op::kForward, item + 1, micro_batch)));
  if (!subject.train) return absl::OkStatus();
  return CheckAfter(subject, positions.Backward(item + 1, micro_batch),
                    positions.Backward(item, micro_batch));
}

// Between a compute instruction and its exchanges.
absl::Status CheckExchanges(const Subject& subject, int item, int micro_batch) {
  const Positions& positions = subject.positions;
  const int32_t forward = positions.At(Op::kForward, item, micro_batch);
  const int32_t backward = positions.Backward(item, micro_batch);
  RETURN_IF_ERROR(CheckAfter(subject, positions.At(Op::kRecvAct, item, micro_batch), forward));
  RETURN_IF_ERROR(CheckAfter(subject, forward, positions.At(Op::kSendAct, item, micro_batch)));
  RETURN_IF_ERROR(CheckAfter(subject, positions.At(Op::kRecvGrad, item, micro_batch), backward));
  return CheckAfter(subject, backward, positions.At(Op::kSendGrad, item, micro_batch));
}

}  // namespace

absl::Status CheckOrder(const Subject& subject) {
  const Context& context = subject.context;
  for (int item = 0; item < context.num_items(); ++item) {
    if (!context.Holds(subject.program, item)) continue;
    const bool has_neighbour =
        item + 1 < context.num_items() && context.Holds(subject.program, item + 1);
    for (int j = 0; j < context.num_micro_batches; ++j) {
      if (has_neighbour) RETURN_IF_ERROR(CheckNeighbours(subject, item, j));
      RETURN_IF_ERROR(CheckExchanges(subject, item, j));
      if (!subject.train || j == 0) continue;
      RETURN_IF_ERROR(CheckAfter(subject, subject.positions.WeightGradient(item, j - 1),
                                 subject.positions.WeightGradient(item, j)));
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira::validate
