#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/dependencies.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "gathered";

// Follows the parameters of each unit through a program.
class GatheredCheck {
 public:
  explicit GatheredCheck(const Subject& subject)
      : subject_(subject),
        context_(subject.context),
        whole_(context_.placement.whole_parameters),
        states_(context_.units.size(), State{.present = whole_}) {}

  absl::Status Run() {
    for (size_t i = 0; i < subject_.program.instructions.size(); ++i) RETURN_IF_ERROR(Follow(i));
    for (int unit : subject_.program.units) {
      const State& state = At(unit);
      if (!whole_ && state.present) {
        return Fault(kCheck, subject_,
                     absl::StrCat("RELEASE of unit ", unit, " before the end of the program"));
      }
      if (whole_ && state.stale) {
        return Fault(kCheck, subject_, absl::StrCat("GATHER of unit ", unit, " after its STEP"));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct State {
    bool present = false;  // all of the unit's parameters are there
    bool stale = false;    // as they were before the last update
  };

  State& At(int unit) { return states_[static_cast<size_t>(unit)]; }
  absl::Status Wrong(size_t index, absl::string_view expected) const {
    return FaultAt(kCheck, subject_, index, expected);
  }

  absl::Status Follow(size_t index) {
    const Instruction& instruction = subject_.program.instructions[index];
    if (IsCompute(instruction.op)) return Use(index, instruction.unit);
    switch (instruction.op) {
      case Op::kGather: return Gather(index, instruction.unit);
      case Op::kRelease: return Release(index, instruction.unit);
      case Op::kStep:
        // With whole states, STEP updates the parameters everywhere; otherwise only the shard.
        At(instruction.unit).stale =
            whole_ ? !context_.placement.whole_states : At(instruction.unit).present;
        return absl::OkStatus();
      case Op::kTieParameter: return Copy(index, instruction.unit);
      default: return absl::OkStatus();
    }
  }

  absl::Status Use(size_t index, int unit) {
    for (int used : context_.unit(unit).uses) {
      if (!context_.HasParameters(used)) continue;
      const int buffer = ParametersUnit(context_.units, subject_.program.units, used);
      if (!At(buffer).present)
        return Wrong(index, absl::StrCat("GATHER of unit ", buffer, " before it is used"));
      if (At(buffer).stale) {
        return Wrong(index, absl::StrCat("parameters of unit ", buffer,
                                         " gathered anew after their update"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Gather(size_t index, int unit) {
    if (ParametersUnit(context_.units, subject_.program.units, unit) != unit) {
      return Wrong(index, "the owner's parameters in use, not the head end's");
    }
    State& state = At(unit);
    if (whole_ && !state.stale)
      return Wrong(index, "no GATHER: the parameters are whole and up to date");
    if (!whole_ && state.present) return Wrong(index, "RELEASE before the next GATHER of a unit");
    state = {.present = true, .stale = false};
    return absl::OkStatus();
  }

  absl::Status Release(size_t index, int unit) {
    if (whole_) return Wrong(index, "no RELEASE: the rank keeps all parameters");
    if (!At(unit).present) return Wrong(index, "GATHER before RELEASE");
    At(unit) = State{};
    return absl::OkStatus();
  }

  absl::Status Copy(size_t index, int unit) {
    State& state = At(unit);
    if (context_.unit(unit).owner != -1) {
      state.stale = !whole_ && state.present;
    } else if (whole_ && state.stale) {
      return Wrong(index, "GATHER after STEP, before the parameters are copied");
    }
    return absl::OkStatus();
  }

  const Subject& subject_;
  const Context& context_;
  const bool whole_;
  std::vector<State> states_;
};

}  // namespace

absl::Status CheckGathered(const Subject& subject) { return GatheredCheck(subject).Run(); }

}  // namespace esteira::validate
