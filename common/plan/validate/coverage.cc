#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "coverage";

std::string Of(const Subject& subject, int item, int micro_batch) {
  return absl::StrCat(subject.context.on_chunks() ? "chunk " : "unit ", item, ", micro-batch ",
                      micro_batch);
}

bool Recomputes(const Subject& subject, int item) {
  const Context& context = subject.context;
  return !context.on_chunks() && context.plan.layout.policy(subject.program.stage).recompute &&
         context.unit(item).kind == UnitKind::kBlock;
}

// `second` stands after `first`; both exist.
absl::Status CheckAfter(const Subject& subject, int32_t first, int32_t second) {
  if (first < second) return absl::OkStatus();
  const Instruction& earlier = subject.program.instructions[static_cast<size_t>(first)];
  return FaultAt(kCheck, subject, static_cast<size_t>(second),
                 absl::StrCat("it after ", ToText(earlier)));
}

absl::Status CheckBackward(const Subject& subject, int item, int micro_batch) {
  const Positions& positions = subject.positions;
  const int32_t forward = positions.At(Op::kForward, item, micro_batch);
  const int32_t whole = positions.At(Op::kBackward, item, micro_batch);
  const int32_t input = positions.At(Op::kBackwardInput, item, micro_batch);
  const int32_t weight = positions.At(Op::kBackwardWeight, item, micro_batch);
  const int32_t recompute = positions.At(Op::kRecompute, item, micro_batch);
  const bool split = input != -1 && weight != -1;
  if ((whole != -1) == split || (input != -1) != (weight != -1)) {
    return Fault(kCheck, subject,
                 absl::StrCat("one B, or one I and one W, of ", Of(subject, item, micro_batch)));
  }
  const int32_t backward = split ? input : whole;
  RETURN_IF_ERROR(CheckAfter(subject, forward, backward));
  if (split) RETURN_IF_ERROR(CheckAfter(subject, input, weight));
  if ((recompute != -1) != Recomputes(subject, item)) {
    return Fault(
        kCheck, subject,
        absl::StrCat(recompute != -1 ? "no R" : "one R", " of ", Of(subject, item, micro_batch)));
  }
  if (recompute == -1) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAfter(subject, forward, recompute));
  return CheckAfter(subject, recompute, backward);
}

}  // namespace

absl::Status CheckCoverage(const Subject& subject) {
  for (size_t index : subject.positions.repeated()) {
    if (IsCompute(subject.program.instructions[index].op)) {
      return FaultAt(kCheck, subject, index, "it only once");
    }
  }
  for (int item = 0; item < subject.context.num_items(); ++item) {
    if (!subject.context.Holds(subject.program, item)) continue;
    for (int j = 0; j < subject.context.num_micro_batches; ++j) {
      if (subject.positions.At(Op::kForward, item, j) == -1) {
        return Fault(kCheck, subject, absl::StrCat("one F of ", Of(subject, item, j)));
      }
      if (subject.train) RETURN_IF_ERROR(CheckBackward(subject, item, j));
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira::validate
