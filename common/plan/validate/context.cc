#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr size_t kNumPositionedOps = static_cast<size_t>(Op::kRecvGrad) + 1;

bool IsPositioned(Op op) { return IsCompute(op) || IsPointToPoint(op); }

absl::Status Described(absl::string_view check, absl::string_view where,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(check, ": ", where, ": expected ", expected));
}

std::string Where(const Program& program, bool train) {
  return absl::StrCat(train ? "train" : "evaluate", " stage ", program.stage);
}

}  // namespace

Context::Context(const Plan& checked_plan, Phase checked_phase)
    : plan(checked_plan),
      phase(checked_phase),
      units(MakeUnits(checked_plan.model)),
      placement(PlacementOf(checked_plan.layout.zero)),
      num_micro_batches(checked_plan.layout.num_micro_batches()),
      stage_of_unit(units.size(), -1) {
  for (int stage = 0; stage < plan.layout.stages; ++stage) {
    for (int held : plan.train[static_cast<size_t>(stage)].units) {
      stage_of_unit[static_cast<size_t>(held)] = stage;
    }
  }
}

int Context::num_items() const {
  return on_chunks() ? plan.layout.num_chunks() : NumComputeUnits(plan.model);
}

int Context::StageOf(int item) const {
  const auto index = static_cast<size_t>(item);
  return stage_of_unit[on_chunks() ? static_cast<size_t>(plan.layout.boundaries[index]) : index];
}

int Context::OtherEnd(int end) const {
  return end == TiedHeadEnd(plan.model) ? TiedEmbeddingEnd(plan.model) : TiedHeadEnd(plan.model);
}

int Context::WindowSize(int stage) const {
  const int size = plan.layout.policy(stage).reduce_every;
  return size == kAll ? num_micro_batches : std::min(size, num_micro_batches);
}

Positions::Positions(const Context& context, const Program& program)
    : num_micro_batches_(static_cast<size_t>(context.num_micro_batches)) {
  for (int item = 0; item < context.num_items(); ++item) {
    row_of_item_.push_back(context.Holds(program, item) ? static_cast<int32_t>(num_rows_++) : -1);
  }
  cells_.assign(kNumPositionedOps * num_rows_ * num_micro_batches_, -1);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (!IsPositioned(instruction.op)) continue;
    int32_t& cell = cells_[Cell(instruction.op, instruction.unit, instruction.micro_batch)];
    if (cell == -1) {
      cell = static_cast<int32_t>(i);
    } else {
      repeated_.push_back(i);
    }
  }
}

size_t Positions::Cell(Op op, int item, int micro_batch) const {
  const auto row = static_cast<size_t>(row_of_item_[static_cast<size_t>(item)]);
  return (static_cast<size_t>(op) * num_rows_ + row) * num_micro_batches_ +
         static_cast<size_t>(micro_batch);
}

int32_t Positions::At(Op op, int item, int micro_batch) const {
  return cells_[Cell(op, item, micro_batch)];
}

int32_t Positions::Backward(int item, int micro_batch) const {
  const int32_t whole = At(Op::kBackward, item, micro_batch);
  return whole != -1 ? whole : At(Op::kBackwardInput, item, micro_batch);
}

int32_t Positions::WeightGradient(int item, int micro_batch) const {
  const int32_t whole = At(Op::kBackward, item, micro_batch);
  return whole != -1 ? whole : At(Op::kBackwardWeight, item, micro_batch);
}

absl::Status Fault(absl::string_view check, const Program& program, bool train,
                   absl::string_view expected) {
  return Described(check, Where(program, train), expected);
}

absl::Status FaultAt(absl::string_view check, const Program& program, bool train, size_t index,
                     absl::string_view expected) {
  return Described(check,
                   absl::StrCat(Where(program, train), ", instruction ", index, " (",
                                ToText(program.instructions[index]), ")"),
                   expected);
}

}  // namespace esteira::validate
