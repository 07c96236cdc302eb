// Where sends and receives stand. All exchanges of a replica get one global order, that of the time
// at which their operands are made when every pass of a chunk takes equally long. In a program,
// sends and receives stand among the compute instructions by these times.
//
// This order is a proof: an exchange is later than what makes its operand and earlier than what
// uses it, and each queue has its exchanges in the global order. So the earliest thing that has not
// happened yet never waits for a later one, whatever the schedule and wherever its chunks are,
// with rendezvous and FIFO queues; and a slot that is given back in a program's order is given back
// in the global order, so that slots cannot make a circle either.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/lowering/peers.h"

namespace esteira {
namespace {

// Time of an exchange, where a pass of a chunk takes 1.
constexpr double kExchange = 0.05;

// What a compute instruction makes: an activation (forward) or a gradient, of (unit, micro-batch).
using Value = std::tuple<bool, int, int>;

bool ReadsNeighbour(Op op) {
  return op == Op::kForward || op == Op::kBackward || op == Op::kBackwardInput;
}
Value MadeBy(const Instruction& i) { return {i.op == Op::kForward, i.unit, i.micro_batch}; }
Value NeededBy(const Instruction& i) {
  const bool forward = i.op == Op::kForward;
  return {forward, forward ? i.unit - 1 : i.unit + 1, i.micro_batch};
}

// Runs the compute instructions, each stage in its order.
class Clock {
 public:
  Clock(const Plan& plan, const std::vector<Program>& programs,
        const std::vector<int>& stage_of_unit)
      : programs_(programs), stage_of_unit_(stage_of_unit) {
    for (size_t chunk = 0; chunk + 1 < plan.layout.boundaries.size(); ++chunk) {
      const int units = plan.layout.boundaries[chunk + 1] - plan.layout.boundaries[chunk];
      pass_of_unit_.insert(pass_of_unit_.end(), static_cast<size_t>(units), 1.0 / units);
    }
  }

  // Starts by program and instruction; an error when the schedule waits for itself.
  absl::StatusOr<std::vector<std::vector<double>>> Run() {
    starts_.resize(programs_.size());
    free_.assign(programs_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t p = 0; p < programs_.size(); ++p) {
        while (Advance(p)) moved = true;
      }
    }
    for (size_t p = 0; p < programs_.size(); ++p) {
      const Program& program = programs_[p];
      if (starts_[p].size() == program.instructions.size()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("order: stage ", program.stage, " waits for ever before ",
                       ToText(program.instructions[starts_[p].size()])));
    }
    return std::move(starts_);
  }
  double EndOf(const Value& value) const { return ends_.at(value); }

 private:
  bool Advance(size_t p) {
    const Program& program = programs_[p];
    if (starts_[p].size() == program.instructions.size()) return false;
    const Instruction& instruction = program.instructions[starts_[p].size()];
    double start = free_[p];
    if (ReadsNeighbour(instruction.op)) {
      const Value needed = NeededBy(instruction);
      const int unit = std::get<1>(needed);
      const bool exists = unit >= 0 && unit < static_cast<int>(stage_of_unit_.size());
      if (exists && stage_of_unit_[static_cast<size_t>(unit)] != program.stage) {
        const auto end = ends_.find(needed);
        if (end == ends_.end()) return false;
        start = std::max(start, end->second + kExchange);
      }
    }
    const double passes = instruction.op == Op::kBackward ? 2 : 1;
    free_[p] = start + passes * pass_of_unit_[static_cast<size_t>(instruction.unit)];
    starts_[p].push_back(start);
    if (ReadsNeighbour(instruction.op)) ends_[MadeBy(instruction)] = free_[p];
    return true;
  }

  const std::vector<Program>& programs_;
  const std::vector<int>& stage_of_unit_;
  std::vector<double> pass_of_unit_;
  std::vector<double> free_;
  std::vector<std::vector<double>> starts_;
  std::map<Value, double> ends_;
};

// An exchange as one of its two stages sees it. Ordered by time; among equals by what is moved.
struct Exchange {
  double time;
  Value value;
  Instruction instruction;
  bool operator<(const Exchange& other) const {
    return std::tie(time, value) < std::tie(other.time, other.value);
  }
};

// By program: its sends, and the receives of others' sends, in the global order.
std::vector<std::vector<Exchange>> Exchanges(const std::vector<Program>& programs,
                                             const std::vector<int>& stage_of_unit,
                                             const Clock& clock) {
  std::vector<std::vector<Exchange>> exchanges(programs.size());
  for (size_t p = 0; p < programs.size(); ++p) {
    for (const Instruction& instruction : programs[p].instructions) {
      const auto send = SendAfter(stage_of_unit, programs[p].stage, instruction);
      if (!send.has_value()) continue;
      const Value value = MadeBy(instruction);
      const double time = clock.EndOf(value);
      exchanges[p].push_back({time, value, *send});
      exchanges[static_cast<size_t>(send->peer)].push_back(
          {time, value, ReceiveOf(*send, programs[p].stage)});
    }
  }
  for (std::vector<Exchange>& mine : exchanges) std::sort(mine.begin(), mine.end());
  return exchanges;
}

// An exchange stands before what starts at its time.
void Place(Program& program, const std::vector<double>& starts,
           const std::vector<Exchange>& exchanges) {
  std::vector<Instruction> instructions;
  auto exchange = exchanges.begin();
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (; exchange != exchanges.end() && exchange->time <= starts[i]; ++exchange) {
      instructions.push_back(exchange->instruction);
    }
    instructions.push_back(program.instructions[i]);
  }
  for (; exchange != exchanges.end(); ++exchange) instructions.push_back(exchange->instruction);
  program.instructions = std::move(instructions);
}

}  // namespace

absl::StatusOr<Plan> PointToPoint(Plan plan) {
  const std::vector<int> stage_of_unit = StagesOfUnits(plan);
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    Clock clock(plan, *programs, stage_of_unit);
    auto starts = clock.Run();
    if (!starts.ok()) return starts.status();
    const auto exchanges = Exchanges(*programs, stage_of_unit, clock);
    for (size_t p = 0; p < programs->size(); ++p) Place((*programs)[p], (*starts)[p], exchanges[p]);
  }
  return plan;
}

}  // namespace esteira
