// Whether a plan's numbers fit each other, so that no later check, nor the machine, can index out
// of range.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "structure";
// Larger sizes than any model has, small enough that no product of them overflows.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxRanks = int64_t{1} << 20;

absl::Status PlanFault(absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(kCheck, ": plan: expected ", expected));
}

absl::Status CheckModel(const ModelSpec& model) {
  for (int64_t size : {model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads,
                       model.intermediate_size, model.vocab_size, model.max_sequence_length}) {
    if (size < 1 || size > kMaxDimension) {
      return PlanFault(
          absl::StrCat("sizes of the model from 1 to ", kMaxDimension, ", found ", size));
    }
  }
  if (model.hidden_size % model.num_heads != 0 || model.num_heads % model.num_kv_heads != 0) {
    return PlanFault(
        "the heads to divide the hidden size, and the key-value heads to divide the heads");
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const Plan& plan) {
  const Layout& layout = plan.layout;
  for (int64_t count :
       {int64_t{layout.stages}, int64_t{layout.chunks_per_stage}, int64_t{layout.replicas}}) {
    if (count < 1 || count > kMaxRanks) {
      return PlanFault(
          absl::StrCat("stages, chunks and replicas from 1 to ", kMaxRanks, ", found ", count));
    }
  }
  if (layout.zero < 0 || layout.zero > 3)
    return PlanFault(absl::StrCat("zero from 0 to 3, found ", layout.zero));
  if (layout.policies.size() != static_cast<size_t>(layout.stages)) {
    return PlanFault(absl::StrCat("a policy for each of ", layout.stages, " stages, found ",
                                  layout.policies.size()));
  }
  for (const StagePolicy& policy : layout.policies) {
    if (policy.reduce_every < 0 || policy.gather_for < 0 || policy.lookahead < 0) {
      return PlanFault(
          "reduce_every and gather_for of at least 1, or 0 for all; lookahead of at least 0");
    }
  }
  for (int64_t size : {layout.global_batch_size, layout.micro_batch_size, layout.sequence_length}) {
    if (size < 1 || size > kMaxDimension) {
      return PlanFault(absl::StrCat("batch sizes and sequence length from 1 to ", kMaxDimension,
                                    ", found ", size));
    }
  }
  if (layout.numerics == Numerics::kExact && layout.gradient_traffic == GradientTraffic::kBf16) {
    return PlanFault("gradient traffic in full where numerics are exact");
  }
  const std::vector<int>& bounds = layout.boundaries;
  const int64_t chunks = int64_t{layout.stages} * layout.chunks_per_stage;
  if (static_cast<int64_t>(bounds.size()) != chunks + 1 || bounds.front() != 0 ||
      bounds.back() != NumComputeUnits(plan.model) ||
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end()) {
    return PlanFault(absl::StrCat("boundaries of ", chunks, " chunks ascending from 0 to ",
                                  NumComputeUnits(plan.model), ", found ",
                                  absl::StrJoin(bounds, ",")));
  }
  if (plan.train.size() != static_cast<size_t>(layout.stages) ||
      plan.evaluate.size() != plan.train.size()) {
    return PlanFault(absl::StrCat(layout.stages,
                                  " programs to train and as many to evaluate, found ",
                                  plan.train.size(), " and ", plan.evaluate.size()));
  }
  const int64_t ranks = int64_t{layout.stages} * layout.replicas;
  std::vector<int> workers = plan.worker_of_rank;
  std::sort(workers.begin(), workers.end());
  const bool distinct = std::adjacent_find(workers.begin(), workers.end()) == workers.end();
  if (!workers.empty() &&
      (static_cast<int64_t>(workers.size()) != ranks || workers.front() < 0 || !distinct)) {
    return PlanFault(absl::StrCat("one worker for each of ", ranks, " ranks, each once, found ",
                                  absl::StrJoin(plan.worker_of_rank, ",")));
  }
  int64_t held = 0;
  for (const Program& program : plan.train) held += static_cast<int64_t>(program.units.size());
  const int64_t units = NumComputeUnits(plan.model) + (plan.model.tie_embeddings ? 2 : 0);
  if (held != units)
    return PlanFault(absl::StrCat("stages that hold ", units, " units, found ", held));
  return absl::OkStatus();
}

// The programs hold each chunk whole and each unit once. They hold as many units as there are.
absl::Status CheckHeldUnits(const Plan& plan, const std::vector<UnitSpec>& units) {
  std::vector<int> stage_of_unit(units.size(), -1);
  for (int stage = 0; stage < plan.layout.stages; ++stage) {
    const Program& program = plan.train[static_cast<size_t>(stage)];
    for (size_t i = 0; i < program.units.size(); ++i) {
      const int unit = program.units[i];
      if (unit < 0 || static_cast<size_t>(unit) >= units.size() ||
          (i > 0 && program.units[i - 1] >= unit)) {
        return Fault(kCheck, program, true, "ascending units of the model");
      }
      int& holder = stage_of_unit[static_cast<size_t>(unit)];
      if (holder != -1) {
        return Fault(kCheck, program, true,
                     absl::StrCat("unit ", unit, " once, but stage ", holder, " holds it too"));
      }
      holder = stage;
    }
  }
  std::vector<int> chunks_of_stage(static_cast<size_t>(plan.layout.stages), 0);
  for (size_t chunk = 0; chunk + 1 < plan.layout.boundaries.size(); ++chunk) {
    const auto first = static_cast<size_t>(plan.layout.boundaries[chunk]);
    const auto end = static_cast<size_t>(plan.layout.boundaries[chunk + 1]);
    for (size_t unit = first; unit < end; ++unit) {
      if (stage_of_unit[unit] != stage_of_unit[first]) {
        return PlanFault(absl::StrCat("chunk ", chunk, " on one stage"));
      }
    }
    ++chunks_of_stage[static_cast<size_t>(stage_of_unit[first])];
  }
  for (int count : chunks_of_stage) {
    if (count != plan.layout.chunks_per_stage) {
      return PlanFault(
          absl::StrCat(plan.layout.chunks_per_stage, " chunks on each stage, found ", count));
    }
  }
  if (plan.model.tie_embeddings) {
    const auto stage_of = [&](int unit) { return stage_of_unit[static_cast<size_t>(unit)]; };
    if (stage_of(TiedEmbeddingEnd(plan.model)) != stage_of(0) ||
        stage_of(TiedHeadEnd(plan.model)) != stage_of(NumComputeUnits(plan.model) - 1)) {
      return PlanFault("the ends of the tied table on the stages of the embedding and of the head");
    }
  }
  return absl::OkStatus();
}

bool IsKnown(Op op) { return static_cast<int>(op) < kNumOps; }

bool IsAllowed(Op op, Phase phase, bool train) {
  if (IsPointToPoint(op) && phase < Phase::kPointToPoint) return false;
  if (!IsPointToPoint(op) && !IsCompute(op) && phase < Phase::kZero) return false;
  if (op == Op::kRecompute && phase == Phase::kGenerated) return false;
  if (train) return true;
  return op == Op::kForward || op == Op::kSendAct || op == Op::kRecvAct || op == Op::kGather ||
         op == Op::kRelease || op == Op::kNorm;
}

bool HasNoSlots(const Instruction& i) {
  return i.x == -1 && i.y == -1 && i.dx == -1 && i.dy == -1 && i.saved == -1 && i.slot == -1;
}

// The instructions of one program: ops of the phase, on what the rank holds, within range.
class InstructionCheck {
 public:
  InstructionCheck(const Context& context, const Program& program, bool train)
      : context_(context), program_(program), train_(train) {}

  absl::Status Run() const {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const char* expected = Expected(program_.instructions[i]);
      if (expected != nullptr) return FaultAt(kCheck, program_, train_, i, expected);
    }
    return absl::OkStatus();
  }

 private:
  // What `i` should have been; null when it is right.
  const char* Expected(const Instruction& i) const {
    if (!IsAllowed(i.op, context_.phase, train_))
      return "an op that this program has in this phase";
    if (context_.phase < Phase::kSlots && !HasNoSlots(i)) return "no slot numbers yet";
    const bool exchange = IsPointToPoint(i.op);
    if (IsCompute(i.op) || exchange) {
      if (i.unit < 0 || i.unit >= context_.num_items() || !context_.Holds(program_, i.unit)) {
        return "a unit that this stage holds and computes";
      }
      if (i.micro_batch < 0 || i.micro_batch >= context_.num_micro_batches)
        return "a micro-batch of the replica";
    } else if (i.micro_batch != -1) {
      return "no micro-batch";
    }
    const bool tie = i.op == Op::kTieGradient || i.op == Op::kTieParameter;
    const bool is_stage =
        i.peer >= 0 && i.peer < context_.plan.layout.stages && i.peer != program_.stage;
    if (exchange && !is_stage) return "another stage as peer";
    if (tie && i.peer != -1 && !is_stage) return "another stage as peer, or none";
    if (!exchange && !tie && i.peer != -1) return "no peer";
    return IsCompute(i.op) || exchange ? nullptr : ExpectedUnit(i, tie);
  }

  const char* ExpectedUnit(const Instruction& i, bool tie) const {
    if (i.op == Op::kNorm) return i.unit == -1 ? nullptr : "no unit";
    if (!std::binary_search(program_.units.begin(), program_.units.end(), i.unit)) {
      return "a unit that this stage holds";
    }
    if (!context_.HasParameters(i.unit)) return "a unit with parameters of its own";
    if (tie && context_.unit(i.unit).kind != UnitKind::kTied) return "an end of the tied table";
    return nullptr;
  }

  const Context& context_;
  const Program& program_;
  const bool train_;
};

absl::Status CheckProgram(const Plan& plan, const Program& program, size_t stage, bool train) {
  const int expected = static_cast<int>(stage);
  if (program.stage != expected) {
    return Fault(kCheck, program, train, absl::StrCat("the program of stage ", expected));
  }
  if (program.units != plan.train[stage].units) {
    return Fault(kCheck, program, train, "the units that the stage holds in training");
  }
  for (const Instruction& instruction : program.instructions) {
    if (!IsKnown(instruction.op)) return Fault(kCheck, program, train, "known ops only");
  }
  // Far too few: the tables of later checks would be larger than the plan.
  const auto micro_batches = static_cast<size_t>(plan.layout.num_micro_batches());
  if (program.instructions.size() + 1024 < micro_batches * program.units.size() / 64) {
    return Fault(kCheck, program, train, "instructions for every unit and micro-batch");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStructure(const Plan& plan, Phase phase) {
  RETURN_IF_ERROR(CheckModel(plan.model));
  RETURN_IF_ERROR(CheckLayout(plan));
  RETURN_IF_ERROR(CheckHeldUnits(plan, MakeUnits(plan.model)));
  const Context context(plan, phase);
  for (const bool train : {true, false}) {
    const std::vector<Program>& programs = train ? plan.train : plan.evaluate;
    for (size_t stage = 0; stage < programs.size(); ++stage) {
      RETURN_IF_ERROR(CheckProgram(plan, programs[stage], stage, train));
      RETURN_IF_ERROR(InstructionCheck(context, programs[stage], train).Run());
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira::validate
