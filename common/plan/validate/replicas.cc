#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "replicas";

bool IsCollective(Op op) { return op != Op::kRelease && QueueOf(op) == Queue::kShard; }

// Indices of the instructions that meet others on the shard queue.
std::vector<size_t> Collectives(const Program& program) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (IsCollective(program.instructions[i].op)) indices.push_back(i);
  }
  return indices;
}

absl::Status CheckOneNorm(const Program& program, bool train) {
  bool found = false;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].op != Op::kNorm) continue;
    if (found) return FaultAt(kCheck, program, train, i, "one NORM");
    found = true;
  }
  return found ? absl::OkStatus() : Fault(kCheck, program, train, "one NORM");
}

absl::Status CheckSame(const Program& model, const Program& program, bool train) {
  const std::vector<size_t> expected = Collectives(model);
  const std::vector<size_t> found = Collectives(program);
  for (size_t n = 0; n < expected.size() || n < found.size(); ++n) {
    if (n == expected.size()) {
      return FaultAt(kCheck, program, train, found[n],
                     absl::StrCat("nothing more to meet rank ", model.rank, " in"));
    }
    const Instruction& a = model.instructions[expected[n]];
    if (n == found.size()) {
      return Fault(kCheck, program, train, absl::StrCat(ToText(a), " as on rank ", model.rank));
    }
    const Instruction& b = program.instructions[found[n]];
    if (a.op != b.op || a.unit != b.unit || a.joined != b.joined) {
      return FaultAt(kCheck, program, train, found[n],
                     absl::StrCat(ToText(a), " as on rank ", model.rank));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReplicas(const Context& context, const std::vector<Program>& programs,
                           bool train) {
  for (const Program& program : programs) {
    RETURN_IF_ERROR(CheckOneNorm(program, train));
    const Program& first =
        programs[static_cast<size_t>(context.plan.layout.RankOf(program.stage, 0))];
    RETURN_IF_ERROR(CheckSame(first, program, train));
  }
  return absl::OkStatus();
}

}  // namespace esteira::validate
