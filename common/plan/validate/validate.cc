#include "common/plan/validate.h"

#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira {
namespace {

absl::Status CheckProgram(const validate::Subject& subject) {
  const Phase phase = subject.context.phase;
  RETURN_IF_ERROR(validate::CheckCoverage(subject));
  RETURN_IF_ERROR(validate::CheckOrder(subject));
  if (phase < Phase::kPointToPoint) return absl::OkStatus();
  RETURN_IF_ERROR(validate::CheckPeers(subject));
  RETURN_IF_ERROR(validate::CheckPairing(subject));
  if (phase < Phase::kZero) return absl::OkStatus();
  RETURN_IF_ERROR(validate::CheckGathered(subject));
  RETURN_IF_ERROR(validate::CheckReduction(subject));
  RETURN_IF_ERROR(validate::CheckJoins(subject));
  if (phase < Phase::kSlots) return absl::OkStatus();
  return validate::CheckSlots(subject);
}

absl::Status CheckPrograms(const validate::Context& context, const std::vector<Program>& programs,
                           bool train) {
  for (const Program& program : programs) {
    RETURN_IF_ERROR(CheckProgram({context, program, train, validate::Positions(context, program)}));
  }
  if (context.phase >= Phase::kPointToPoint)
    return validate::CheckDeadlock(context, programs, train);
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Plan& plan, Phase phase) {
  RETURN_IF_ERROR(validate::CheckStructure(plan, phase));
  const validate::Context context(plan, phase);
  RETURN_IF_ERROR(CheckPrograms(context, plan.train, true));
  return CheckPrograms(context, plan.evaluate, false);
}

}  // namespace esteira
