#include "common/plan/dependencies.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace esteira {
namespace {

constexpr int kNone = -1;

// Follows a program and says what each instruction touches: the slot of a window or of gathered
// parameters is named by the CLEAR or GATHER that came last.
class AccessReader {
 public:
  AccessReader(const std::vector<UnitSpec>& units, const Placement& placement,
               const Program& program)
      : units_(units),
        placement_(placement),
        held_(program.units),
        gathered_(units.size(), kNone),
        window_(units.size(), kNone) {}

  std::vector<Access> Read(const Instruction& instruction) {
    accesses_.clear();
    if (IsCompute(instruction.op)) {
      ReadCompute(instruction);
    } else if (IsPointToPoint(instruction.op)) {
      ReadPointToPoint(instruction);
    } else {
      ReadShard(instruction);
    }
    return accesses_;
  }

 private:
  void Add(ResourceKind kind, int32_t index, bool write) {
    accesses_.push_back({.kind = kind, .index = index, .micro_batch = kNone, .write = write});
  }

  void AddValue(ResourceKind slot_kind, int32_t slot, ResourceKind value_kind, int32_t unit,
                int32_t micro_batch, bool write) {
    if (slot != kNone) {
      Add(slot_kind, slot, write);
    } else {
      accesses_.push_back(
          {.kind = value_kind, .index = unit, .micro_batch = micro_batch, .write = write});
    }
  }

  // The input of unit u is the output of unit u - 1; so are their gradients.
  void X(const Instruction& i, bool write) {
    AddValue(ResourceKind::kActivationSlot, i.x, ResourceKind::kActivationValue, i.unit - 1,
             i.micro_batch, write);
  }
  void Y(const Instruction& i, bool write) {
    AddValue(ResourceKind::kActivationSlot, i.y, ResourceKind::kActivationValue, i.unit,
             i.micro_batch, write);
  }
  void Dx(const Instruction& i, bool write) {
    AddValue(ResourceKind::kGradientSlot, i.dx, ResourceKind::kGradientValue, i.unit - 1,
             i.micro_batch, write);
  }
  void Dy(const Instruction& i, bool write) {
    AddValue(ResourceKind::kGradientSlot, i.dy, ResourceKind::kGradientValue, i.unit, i.micro_batch,
             write);
  }
  void Saved(const Instruction& i, bool write) {
    AddValue(ResourceKind::kSavedSlot, i.saved, ResourceKind::kSavedValue, i.unit, i.micro_batch,
             write);
  }

  void Window(int unit, int32_t slot, bool write) {
    if (slot != kNone) {
      Add(ResourceKind::kWindowSlot, slot, write);
    } else {
      Add(ResourceKind::kSums, unit, write);
    }
  }

  void GatheredParameters(int unit, bool write) {
    const int32_t slot = gathered_[static_cast<size_t>(unit)];
    if (slot != kNone) {
      Add(ResourceKind::kParametersSlot, slot, write);
    } else {
      Add(ResourceKind::kGathered, unit, write);
    }
  }

  void ReadCompute(const Instruction& i) {
    const bool forward = i.op == Op::kForward;
    const bool weights = i.op == Op::kBackward || i.op == Op::kBackwardWeight;
    for (int used : units_[static_cast<size_t>(i.unit)].uses) {
      if (units_[static_cast<size_t>(used)].flat_elements == 0) continue;
      const int unit = ParametersUnit(units_, held_, used);
      if (placement_.whole_parameters) {
        Add(ResourceKind::kParameters, unit, false);
      } else {
        GatheredParameters(unit, false);
      }
      if (weights) Window(used, window_[static_cast<size_t>(used)], true);
    }
    X(i, false);
    if (forward) Y(i, true);
    if (!forward && i.op != Op::kRecompute) Dy(i, false);
    if (i.op == Op::kBackward || i.op == Op::kBackwardInput) Dx(i, true);
    Saved(i, i.op !=
                 Op::kBackwardWeight);  // the backward pass for the input leaves there what W needs
    Add(ResourceKind::kFindings, 0, true);
  }

  void ReadPointToPoint(const Instruction& i) {
    if (i.op == Op::kSendAct) Y(i, false);
    if (i.op == Op::kRecvAct) X(i, true);
    if (i.op == Op::kSendGrad) Dx(i, false);
    if (i.op == Op::kRecvGrad) Dy(i, true);
  }

  void ReadShard(const Instruction& i) {
    switch (i.op) {
      case Op::kGather:
        Add(ResourceKind::kParameters, i.unit, placement_.whole_parameters);
        if (placement_.whole_parameters) break;
        gathered_[static_cast<size_t>(i.unit)] = i.slot;
        GatheredParameters(i.unit, true);
        break;
      case Op::kRelease:
        if (!placement_.whole_parameters) GatheredParameters(i.unit, false);
        break;
      case Op::kClear:
        window_[static_cast<size_t>(i.unit)] = i.slot;
        Window(i.unit, i.slot, true);
        break;
      case Op::kReduce:
        Window(i.unit, i.slot, true);
        Add(ResourceKind::kSums, i.unit, true);
        break;
      case Op::kTieGradient: ReadTieGradient(i); break;
      case Op::kNorm:
        for (int unit : held_) Add(ResourceKind::kSums, unit, false);
        Add(ResourceKind::kFindings, 0, true);
        Add(ResourceKind::kStepResult, 0, true);
        break;
      case Op::kStep:
        Add(ResourceKind::kStepResult, 0, false);
        Add(ResourceKind::kSums, i.unit, false);
        Add(ResourceKind::kStates, i.unit, true);
        Add(ResourceKind::kParameters, i.unit, true);
        break;
      case Op::kTieParameter:
        Add(ResourceKind::kParameters, i.unit, units_[static_cast<size_t>(i.unit)].owner != kNone);
        break;
      default: break;
    }
  }

  void ReadTieGradient(const Instruction& i) {
    const int owner = units_[static_cast<size_t>(i.unit)].owner;
    Add(ResourceKind::kSums, i.unit, owner == kNone);
    if (owner != kNone && i.peer == kNone) Add(ResourceKind::kSums, owner, true);
  }

  const std::vector<UnitSpec>& units_;
  const Placement placement_;
  const std::vector<int>& held_;
  std::vector<int32_t> gathered_;  // by unit: the slot of its last GATHER
  std::vector<int32_t> window_;    // by unit: the slot of its last CLEAR
  std::vector<Access> accesses_;
};

// The last users of one resource, by queue; within a queue the last one finishes last.
struct History {
  int32_t writer = kNone;
  Queue writer_queue = Queue::kCompute;
  std::array<int32_t, kNumQueues> readers;  // since the last write
};

uint64_t Key(const Access& access) {
  return (static_cast<uint64_t>(access.kind) << 56) |
         (static_cast<uint64_t>(access.index + 1) << 28) |
         static_cast<uint64_t>(access.micro_batch + 1);
}

}  // namespace

int ParametersUnit(const std::vector<UnitSpec>& units, const std::vector<int>& held, int unit) {
  const int owner = units[static_cast<size_t>(unit)].owner;
  return owner != kNone && std::binary_search(held.begin(), held.end(), owner) ? owner : unit;
}

std::vector<std::vector<Access>> Accesses(const std::vector<UnitSpec>& units,
                                          const Placement& placement, const Program& program) {
  AccessReader reader(units, placement, program);
  std::vector<std::vector<Access>> accesses;
  accesses.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions)
    accesses.push_back(reader.Read(instruction));
  return accesses;
}

std::vector<std::vector<int32_t>> Dependencies(const std::vector<UnitSpec>& units,
                                               const Placement& placement, const Program& program) {
  AccessReader reader(units, placement, program);
  std::unordered_map<uint64_t, History> histories;
  std::vector<std::vector<int32_t>> dependencies(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const bool release = instruction.op == Op::kRelease;
    const Queue queue = QueueOf(instruction.op);
    std::array<int32_t, kNumQueues> last;
    last.fill(kNone);
    const auto wait_for = [&last](int32_t other, Queue other_queue) {
      int32_t& latest = last[static_cast<size_t>(other_queue)];
      latest = std::max(latest, other);
    };
    for (const Access& access : reader.Read(instruction)) {
      const auto [it, inserted] = histories.try_emplace(Key(access));
      History& history = it->second;
      if (inserted) history.readers.fill(kNone);
      if (history.writer != kNone) wait_for(history.writer, history.writer_queue);
      if (access.write || release) {
        for (size_t q = 0; q < kNumQueues; ++q) wait_for(history.readers[q], static_cast<Queue>(q));
      }
      if (release) continue;
      if (access.write) {
        history.writer = static_cast<int32_t>(i);
        history.writer_queue = queue;
        history.readers.fill(kNone);
      } else {
        history.readers[static_cast<size_t>(queue)] = static_cast<int32_t>(i);
      }
    }
    if (!release) last[static_cast<size_t>(queue)] = kNone;
    for (int32_t other : last) {
      if (other != kNone) dependencies[i].push_back(other);
    }
    std::sort(dependencies[i].begin(), dependencies[i].end());
  }
  return dependencies;
}

}  // namespace esteira
