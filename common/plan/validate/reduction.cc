#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "reduction";

// Follows the gradients of each unit through a program, to the end of the step.
class ReductionCheck {
 public:
  explicit ReductionCheck(const Subject& subject)
      : subject_(subject), context_(subject.context), states_(context_.units.size()) {}

  absl::Status Run() {
    for (size_t i = 0; i < subject_.program.instructions.size(); ++i) RETURN_IF_ERROR(Follow(i));
    if (!normed_) return Fault(kCheck, subject_, "one NORM");
    return subject_.train ? CheckEnd() : absl::OkStatus();
  }

 private:
  struct State {
    bool open = false;
    int windows = 0;  // reduced so far
    int added = 0;    // micro-batches of the open window
    bool tied = false;
    bool stepped = false;
    bool copied = false;
  };

  State& At(int unit) { return states_[static_cast<size_t>(unit)]; }
  absl::Status Wrong(size_t index, absl::string_view expected) const {
    return FaultAt(kCheck, subject_, index, expected);
  }
  bool IsReduced(int unit) {
    return At(unit).windows == context_.NumWindows(subject_.program.stage);
  }
  bool IsTied(int unit) const { return context_.unit(unit).kind == UnitKind::kTied; }
  bool HoldsBothEnds(int end) const {
    return context_.Holds(subject_.program, context_.OtherEnd(end));
  }
  int WindowMicroBatches(int window) const {
    return std::min(
        context_.WindowSize(subject_.program.stage),
        context_.num_micro_batches - window * context_.WindowSize(subject_.program.stage));
  }

  absl::Status Follow(size_t index) {
    const Instruction& instruction = subject_.program.instructions[index];
    switch (instruction.op) {
      case Op::kBackward:
      case Op::kBackwardWeight: RETURN_IF_ERROR(Add(index, instruction)); break;
      case Op::kClear: return Clear(index, instruction.unit);
      case Op::kReduce: return Reduce(index, instruction.unit);
      case Op::kTieGradient: return Tie(index, instruction.unit);
      case Op::kNorm: return Norm(index);
      case Op::kStep: return Step(index, instruction.unit);
      case Op::kTieParameter: return Copy(index, instruction.unit);
      default: break;
    }
    if (normed_ && IsCompute(instruction.op)) return Wrong(index, "it before NORM");
    return absl::OkStatus();
  }

  absl::Status Add(size_t index, const Instruction& instruction) {
    for (int used : context_.unit(instruction.unit).uses) {
      if (!context_.HasParameters(used)) continue;
      State& state = At(used);
      if (!state.open)
        return Wrong(index, absl::StrCat("CLEAR of unit ", used, " before gradients are added"));
      const int window = instruction.micro_batch / context_.WindowSize(subject_.program.stage);
      if (window != state.windows) {
        return Wrong(index, absl::StrCat("window ", window, " of unit ", used, " open, not window ",
                                         state.windows));
      }
      ++state.added;
    }
    return absl::OkStatus();
  }

  absl::Status Clear(size_t index, int unit) {
    State& state = At(unit);
    if (state.open) return Wrong(index, "REDUCE of the window before the next CLEAR");
    if (IsReduced(unit))
      return Wrong(index,
                   absl::StrCat("only ", context_.NumWindows(subject_.program.stage), " windows"));
    state.open = true;
    state.added = 0;
    return absl::OkStatus();
  }

  absl::Status Reduce(size_t index, int unit) {
    State& state = At(unit);
    if (!state.open) return Wrong(index, "CLEAR before REDUCE");
    const int missing = WindowMicroBatches(state.windows) - state.added;
    if (missing > 0)
      return Wrong(index,
                   absl::StrCat("it after ", missing, " more backward passes of its window"));
    state.open = false;
    ++state.windows;
    return absl::OkStatus();
  }

  absl::Status Tie(size_t index, int unit) {
    if (normed_) return Wrong(index, "it before NORM");
    if (At(unit).tied) return Wrong(index, "it only once");
    const bool both = HoldsBothEnds(unit);
    if (!IsReduced(unit) || (both && !IsReduced(context_.OtherEnd(unit)))) {
      return Wrong(index, "it after the last REDUCE of the tied table");
    }
    At(unit).tied = true;
    if (both) At(context_.OtherEnd(unit)).tied = true;
    return absl::OkStatus();
  }

  absl::Status Norm(size_t index) {
    if (normed_) return Wrong(index, "it only once");
    normed_ = true;
    if (!subject_.train) return absl::OkStatus();
    for (int unit : subject_.program.units) {
      if (!context_.HasParameters(unit)) continue;
      if (!IsReduced(unit))
        return Wrong(index, absl::StrCat("it after the last REDUCE of unit ", unit));
      if (IsTied(unit) && !At(unit).tied)
        return Wrong(index, absl::StrCat("it after TIE_GRAD of unit ", unit));
    }
    return absl::OkStatus();
  }

  absl::Status Step(size_t index, int unit) {
    if (context_.unit(unit).owner != -1)
      return Wrong(index, "no STEP: the other end owns the table");
    if (!normed_) return Wrong(index, "NORM before STEP");
    if (At(unit).stepped) return Wrong(index, "it only once");
    At(unit).stepped = true;
    return absl::OkStatus();
  }

  absl::Status Copy(size_t index, int unit) {
    if (context_.unit(unit).owner == -1 && !At(unit).stepped) return Wrong(index, "it after STEP");
    if (!normed_) return Wrong(index, "it after NORM");
    if (At(unit).copied) return Wrong(index, "it only once");
    At(unit).copied = true;
    return absl::OkStatus();
  }

  absl::Status CheckEnd() {
    for (int unit : subject_.program.units) {
      if (!context_.HasParameters(unit)) continue;
      if (context_.unit(unit).owner == -1 && !At(unit).stepped) {
        return Fault(kCheck, subject_, absl::StrCat("one STEP of unit ", unit));
      }
      if (IsTied(unit) && !HoldsBothEnds(unit) && !At(unit).copied) {
        return Fault(kCheck, subject_, absl::StrCat("one TIE_PARAM of unit ", unit));
      }
    }
    return absl::OkStatus();
  }

  const Subject& subject_;
  const Context& context_;
  bool normed_ = false;
  std::vector<State> states_;
};

}  // namespace

absl::Status CheckReduction(const Subject& subject) { return ReductionCheck(subject).Run(); }

}  // namespace esteira::validate
