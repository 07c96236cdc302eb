#include "tests/common/plan/symbolic_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <utility>

#include "common/base/hash.h"
#include "common/plan/dependencies.h"

namespace esteira {
namespace {

// By shard: a flat buffer; a tensor is one shard.
using Symbols = std::vector<uint64_t>;

uint64_t Combine(std::initializer_list<uint64_t> parts) {
  uint64_t hash = 0x5eed;
  for (uint64_t part : parts) hash = Mix64(hash * 31 + part);
  return hash;
}

uint64_t Combine(const Symbols& symbols) {
  uint64_t hash = symbols.size();
  for (uint64_t symbol : symbols) hash = Combine({hash, symbol});
  return hash;
}

enum Tag : uint64_t {
  kStart = 1,
  kOutput,
  kSavedTag,
  kInputGradient,
  kWeightGradient,
  kAdded,
  kReduced,
  kUpdated,
  kLoss
};

constexpr int32_t kNoSlot = -2;  // not even -1, which says that the sums are the window

struct Rank {
  std::array<std::vector<Symbols>, kNumSlotKinds> slots;
  std::map<int, Symbols> parameters, sums, states;
  uint64_t findings = 0;  // exact sums: their order does not matter
  uint64_t result = 0;
};

class SymbolicRun {
 public:
  SymbolicRun(const Plan& plan, const std::vector<Program>& programs, uint64_t seed)
      : plan_(plan),
        programs_(programs),
        units_(MakeUnits(plan.model)),
        placement_(PlacementOf(plan.layout.zero)),
        replicas_(static_cast<size_t>(plan.layout.replicas)),
        random_(seed) {}

  std::optional<std::vector<uint64_t>> Run() {
    for (int r = 0; r < plan_.layout.num_ranks(); ++r) {
      const Program& program = ProgramOf(static_cast<size_t>(r));
      for (const Instruction& instruction : program.instructions) {
        if (!IsInRange(program, instruction)) return std::nullopt;
      }
      ranks_.push_back(Start(program, plan_.layout.ReplicaOfRank(r)));
      dependencies_.push_back(Dependencies(units_, placement_, program));
      done_.emplace_back(program.instructions.size(), false);
      used_.push_back(UsedSlots(program));
      remaining_ += program.instructions.size();
    }
    while (remaining_ > 0) {
      if (!AdvanceOne()) return std::nullopt;
      if (failed_) return std::nullopt;
    }
    return Final();
  }

 private:
  struct Place {
    size_t rank;
    size_t index;
  };

  // The slots that a compute instruction works on besides its operands, by the units that it uses.
  struct Used {
    std::vector<int32_t> gathered, window;
  };

  // Which slots are meant is settled by the program's order, not by the order of execution.
  std::vector<Used> UsedSlots(const Program& program) const {
    std::vector<int32_t> gathered(units_.size(), kNoSlot), window(units_.size(), kNoSlot);
    std::vector<Used> all;
    for (const Instruction& i : program.instructions) {
      if (i.op == Op::kGather) gathered[static_cast<size_t>(i.unit)] = i.slot;
      if (i.op == Op::kClear) window[static_cast<size_t>(i.unit)] = i.slot;
      Used& used = all.emplace_back();
      if (!IsCompute(i.op)) continue;
      for (int unit : units_[static_cast<size_t>(i.unit)].uses) {
        const int buffer = ParametersUnit(units_, program.units, unit);
        used.gathered.push_back(gathered[static_cast<size_t>(buffer)]);
        used.window.push_back(window[static_cast<size_t>(unit)]);
      }
    }
    return all;
  }

  const Program& ProgramOf(size_t rank) const {
    return programs_[static_cast<size_t>(plan_.layout.StageOfRank(static_cast<int>(rank)))];
  }
  int ReplicaOf(size_t rank) const { return plan_.layout.ReplicaOfRank(static_cast<int>(rank)); }
  const Instruction& At(Place place) const {
    return ProgramOf(place.rank).instructions[place.index];
  }

  bool IsInRange(const Program& program, const Instruction& i) const {
    const bool exchange = IsPointToPoint(i.op);
    const bool held = std::binary_search(program.units.begin(), program.units.end(), i.unit);
    if (i.op != Op::kNorm && !held) return false;
    const bool computes = IsCompute(i.op) || exchange;
    if (computes && i.unit >= NumComputeUnits(plan_.model)) return false;
    if (computes != (i.micro_batch != -1)) return false;
    if (i.micro_batch >= plan_.layout.num_micro_batches()) return false;
    return i.peer < plan_.layout.stages && (!exchange || i.peer >= 0) && i.peer != program.stage;
  }

  // Never written buffers differ from all others.
  Symbols Garbage(size_t size) {
    Symbols symbols(size);
    for (uint64_t& symbol : symbols) symbol = Combine({kStart, ++garbage_});
    return symbols;
  }

  Rank Start(const Program& program, int replica) {
    Rank rank;
    for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
      const bool flat = kind >= static_cast<size_t>(SlotKind::kParameters);
      for (int64_t n = 0; n < program.num_slots(static_cast<SlotKind>(kind)); ++n) {
        rank.slots[kind].push_back(Garbage(flat ? replicas_ : 1));
      }
    }
    for (int unit : program.units) {
      const int name = units_[static_cast<size_t>(unit)].owner == -1
                           ? unit
                           : units_[static_cast<size_t>(unit)].owner;
      for (size_t shard = 0; shard < replicas_; ++shard) {
        const bool own = shard == static_cast<size_t>(replica);
        const uint64_t whole = Combine({kStart, static_cast<uint64_t>(name) << 32, shard});
        rank.parameters[unit].push_back(placement_.whole_parameters || own ? whole : Garbage(1)[0]);
        rank.states[unit].push_back(placement_.whole_states || own ? whole : 0);
        rank.sums[unit].push_back(0);
      }
    }
    return rank;
  }

  // Heads of the queues of a rank whose dependencies are met; a RELEASE is always at the head.
  std::vector<Place> Ready(size_t rank) const {
    std::array<bool, kNumQueues> blocked{};
    std::vector<Place> ready;
    for (size_t index = 0; index < done_[rank].size(); ++index) {
      if (done_[rank][index]) continue;
      const Op op = ProgramOf(rank).instructions[index].op;
      bool& queue = blocked[static_cast<size_t>(QueueOf(op))];
      if (op != Op::kRelease && queue) continue;
      if (op != Op::kRelease) queue = true;
      const std::vector<Place> group = Group({rank, index});
      const bool met = std::all_of(group.begin(), group.end(), [&](Place member) {
        const std::vector<int32_t>& before = dependencies_[rank][member.index];
        return std::all_of(before.begin(), before.end(),
                           [&](int32_t other) { return done_[rank][static_cast<size_t>(other)]; });
      });
      if (met) ready.push_back({rank, index});
    }
    return ready;
  }

  // What runs with `place` on its rank: up to the one that closes the group that it begins.
  std::vector<Place> Group(Place place) const {
    std::vector<Place> group{place};
    const std::vector<Instruction>& all = ProgramOf(place.rank).instructions;
    for (size_t i = place.index + 1; i < all.size() && At(group.back()).joined; ++i) {
      if (all[i].op != Op::kRelease && QueueOf(all[i].op) == QueueOf(At(place).op)) {
        group.push_back({place.rank, i});
      }
    }
    return group;
  }

  bool RunsAlike(Place a, Place b) const {
    const std::vector<Place> one = Group(a), other = Group(b);
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), [&](Place x, Place y) {
      return At(x).op == At(y).op && At(x).unit == At(y).unit;
    });
  }

  // The members that `place` runs with, if all are ready.
  std::vector<Place> Party(Place place) const {
    const Instruction& i = At(place);
    const Program& program = ProgramOf(place.rank);
    std::vector<Place> party{place};
    if (IsPointToPoint(i.op) || i.peer != -1) return WithPartner(place);
    if (i.op != Op::kGather && i.op != Op::kReduce && i.op != Op::kNorm) return party;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == place.rank || (i.op != Op::kNorm && ProgramOf(rank).stage != program.stage))
        continue;
      bool found = false;
      for (Place other : Ready(rank)) {
        if (!RunsAlike(place, other)) continue;
        party.push_back(other);
        found = true;
        break;
      }
      if (!found) return {};
    }
    std::sort(party.begin(), party.end(), [](Place a, Place b) { return a.rank < b.rank; });
    return party;
  }

  std::vector<Place> WithPartner(Place place) const {
    const Instruction& i = At(place);
    const int partner = plan_.layout.RankOf(i.peer, ReplicaOf(place.rank));
    for (Place other : Ready(static_cast<size_t>(partner))) {
      const Instruction& o = At(other);
      if (o.peer != ProgramOf(place.rank).stage || o.micro_batch != i.micro_batch) continue;
      const bool act = i.op == Op::kSendAct && o.op == Op::kRecvAct && o.unit == i.unit + 1;
      const bool grad = i.op == Op::kSendGrad && o.op == Op::kRecvGrad && o.unit == i.unit - 1;
      const bool tie = i.op == o.op && !IsPointToPoint(i.op) && o.unit != i.unit;
      if (act || grad || tie) return {place, other};
    }
    return {};
  }

  bool AdvanceOne() {
    std::vector<Place> all;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::vector<Place> ready = Ready(rank);
      all.insert(all.end(), ready.begin(), ready.end());
    }
    std::shuffle(all.begin(), all.end(), random_);
    for (Place place : all) {
      const std::vector<Place> party = Party(place);
      if (party.empty()) continue;
      ExecuteGroup(party);
      return true;
    }
    return false;
  }

  // `party`: the first of a group on each rank that it runs on.
  void ExecuteGroup(const std::vector<Place>& party) {
    std::vector<std::vector<Place>> groups;
    for (Place first : party) groups.push_back(Group(first));
    for (size_t n = 0; n < groups.front().size(); ++n) {
      std::vector<Place> members;
      for (const std::vector<Place>& group : groups) members.push_back(group[n]);
      Execute(members);
      for (Place member : members) done_[member.rank][member.index] = true;
      remaining_ -= members.size();
    }
  }

  Symbols& Slot(Place place, SlotKind kind, int32_t number) {
    std::vector<Symbols>& slots = ranks_[place.rank].slots[static_cast<size_t>(kind)];
    if (number >= 0 && static_cast<size_t>(number) < slots.size())
      return slots[static_cast<size_t>(number)];
    failed_ = true;
    return missing_;
  }

  Symbols& Window(Place place, int unit, int32_t slot) {
    if (slot == -1) return ranks_[place.rank].sums.at(unit);
    return Slot(place, SlotKind::kWindow, slot);
  }

  void Execute(const std::vector<Place>& party) {
    const Place place = party.front();
    const Instruction& i = At(place);
    switch (i.op) {
      case Op::kForward:
      case Op::kRecompute: return Forward(place);
      case Op::kBackward: BackwardInput(place); return BackwardWeight(place);
      case Op::kBackwardInput: return BackwardInput(place);
      case Op::kBackwardWeight: return BackwardWeight(place);
      case Op::kSendAct:
        Slot(party[1], SlotKind::kActivation, At(party[1]).x) =
            Slot(place, SlotKind::kActivation, i.y);
        return;
      case Op::kSendGrad:
        Slot(party[1], SlotKind::kGradient, At(party[1]).dy) =
            Slot(place, SlotKind::kGradient, i.dx);
        return;
      case Op::kGather: return Gather(party);
      case Op::kReduce: return Reduce(party);
      case Op::kClear: Window(place, i.unit, i.slot).assign(replicas_, 0); return;
      case Op::kTieGradient: return TieGradient(party);
      case Op::kNorm: return Norm(party);
      case Op::kStep: return Step(place);
      case Op::kTieParameter: return TieParameter(party);
      case Op::kRecvAct:
      case Op::kRecvGrad:  // moved by the send
      case Op::kRelease: return;
    }
  }

  // The parameters that a unit computes with.
  uint64_t Parameters(Place place, int unit) {
    const Program& program = ProgramOf(place.rank);
    uint64_t hash = 0;
    const std::vector<int>& uses = units_[static_cast<size_t>(unit)].uses;
    for (size_t n = 0; n < uses.size(); ++n) {
      if (units_[static_cast<size_t>(uses[n])].flat_elements == 0) continue;
      const int buffer = ParametersUnit(units_, program.units, uses[n]);
      const Symbols& symbols =
          placement_.whole_parameters
              ? ranks_[place.rank].parameters.at(buffer)
              : Slot(place, SlotKind::kParameters, used_[place.rank][place.index].gathered[n]);
      hash = Combine({hash, Combine(symbols)});
    }
    return hash;
  }

  // What an instruction reads besides dy: its input (for the embedding the samples), the head's
  // targets, parameters.
  uint64_t Input(Place place) {
    const Instruction& i = At(place);
    const auto batch = static_cast<uint64_t>(
        ReplicaOf(place.rank) * plan_.layout.num_micro_batches() + i.micro_batch);
    const bool ends = i.unit == 0 || i.unit == NumComputeUnits(plan_.model) - 1;
    const uint64_t x = i.unit == 0 ? 0 : Combine(Slot(place, SlotKind::kActivation, i.x));
    return Combine(
        {x, ends ? batch + 1 : 0, static_cast<uint64_t>(i.unit), Parameters(place, i.unit)});
  }

  void Forward(Place place) {
    const Instruction& i = At(place);
    const uint64_t input = Input(place);
    const bool head = i.unit == NumComputeUnits(plan_.model) - 1;
    if (i.op == Op::kForward) {
      if (!head) Slot(place, SlotKind::kActivation, i.y)[0] = Combine({kOutput, input});
      ranks_[place.rank].findings += Combine({kLoss, input});
    }
    if (i.saved != -1) Slot(place, SlotKind::kSaved, i.saved)[0] = Combine({kSavedTag, input});
  }

  uint64_t Gradient(Place place) {
    const Instruction& i = At(place);
    if (i.unit == NumComputeUnits(plan_.model) - 1) return 0;
    return Combine(Slot(place, SlotKind::kGradient, i.dy));
  }

  void BackwardInput(Place place) {
    const Instruction& i = At(place);
    const uint64_t dy = Gradient(place);
    const uint64_t saved = i.saved == -1 ? 0 : Slot(place, SlotKind::kSaved, i.saved)[0];
    const uint64_t dx = Combine({kInputGradient, dy, Input(place), saved});
    if (i.unit > 0) Slot(place, SlotKind::kGradient, i.dx)[0] = dx;
    if (i.saved != -1) Slot(place, SlotKind::kSaved, i.saved)[0] = Combine({saved, dx});
  }

  void BackwardWeight(Place place) {
    const Instruction& i = At(place);
    const uint64_t saved = i.saved == -1 ? 0 : Slot(place, SlotKind::kSaved, i.saved)[0];
    const uint64_t gradient = Combine({kWeightGradient, Gradient(place), Input(place), saved});
    const std::vector<int>& uses = units_[static_cast<size_t>(i.unit)].uses;
    for (size_t n = 0; n < uses.size(); ++n) {
      if (units_[static_cast<size_t>(uses[n])].flat_elements == 0) continue;
      Symbols& symbols = Window(place, uses[n], used_[place.rank][place.index].window[n]);
      for (size_t shard = 0; shard < symbols.size(); ++shard) {
        symbols[shard] =
            Combine({kAdded, symbols[shard], gradient, static_cast<uint64_t>(uses[n]), shard});
      }
    }
  }

  void Gather(const std::vector<Place>& party) {
    const int unit = At(party.front()).unit;
    Symbols whole(replicas_);
    for (Place place : party) {
      const auto shard = static_cast<size_t>(ReplicaOf(place.rank));
      whole[shard] = ranks_[place.rank].parameters.at(unit)[shard];
    }
    for (Place place : party) {
      if (placement_.whole_parameters) {
        ranks_[place.rank].parameters[unit] = whole;
      } else {
        Slot(place, SlotKind::kParameters, At(place).slot) = whole;
      }
    }
  }

  void Reduce(const std::vector<Place>& party) {
    const int unit = At(party.front()).unit;
    Symbols reduced(replicas_, kReduced);
    for (Place place : party) {  // by replica, ascending
      const Symbols& window = Window(place, unit, At(place).slot);
      for (size_t shard = 0; shard < replicas_ && shard < window.size(); ++shard) {
        reduced[shard] = Combine({reduced[shard], window[shard]});
      }
    }
    for (Place place : party) {
      const int32_t slot = At(place).slot;
      Symbols& sums = ranks_[place.rank].sums.at(unit);
      for (size_t shard = 0; shard < replicas_; ++shard) {
        const bool valid =
            placement_.whole_states || shard == static_cast<size_t>(ReplicaOf(place.rank));
        if (!valid) {
          sums[shard] = Garbage(1)[0];
        } else {
          sums[shard] =
              slot == -1 ? reduced[shard] : Combine({kAdded, sums[shard], reduced[shard]});
        }
      }
      if (slot != -1)
        Window(place, unit, slot) = Garbage(replicas_);  // the reduction works in place
    }
  }

  void TieGradient(const std::vector<Place>& party) {
    const Place first = party.front();
    const Place last = party.back();
    const int unit = At(first).unit;
    const int owner = units_[static_cast<size_t>(unit)].owner;
    Place to = first;
    Place from = last;
    int head = At(last).unit;
    int target = unit;
    if (owner != -1) {
      to = last;
      from = first;
      head = unit;
      target = owner;
    }
    auto& sums = ranks_[to.rank].sums;
    if (!sums.contains(target) || head == target) {
      failed_ = true;
      return;
    }
    for (size_t shard = 0; shard < replicas_; ++shard) {
      sums.at(target)[shard] =
          Combine({kAdded, sums.at(target)[shard], ranks_[from.rank].sums.at(head)[shard]});
    }
  }

  void TieParameter(const std::vector<Place>& party) {
    if (party.size() != 2) {
      failed_ = true;
      return;
    }
    const bool first_owns = units_[static_cast<size_t>(At(party[0]).unit)].owner == -1;
    const Place from = first_owns ? party[0] : party[1];
    const Place to = first_owns ? party[1] : party[0];
    ranks_[to.rank].parameters[At(to).unit] = ranks_[from.rank].parameters.at(At(from).unit);
  }

  void Norm(const std::vector<Place>& party) {
    uint64_t total = 0;
    for (Place place : party) {
      const Program& program = ProgramOf(place.rank);
      Rank& rank = ranks_[place.rank];
      total += rank.findings;
      for (int unit : program.units) {
        if (units_[static_cast<size_t>(unit)].owner != -1) continue;
        total += Combine({static_cast<uint64_t>(unit),
                          rank.sums.at(unit)[static_cast<size_t>(ReplicaOf(place.rank))]});
      }
    }
    for (Place place : party) ranks_[place.rank].result = total;
  }

  void Step(Place place) {
    Rank& rank = ranks_[place.rank];
    const auto own = static_cast<size_t>(ReplicaOf(place.rank));
    const int unit = At(place).unit;
    for (size_t shard = 0; shard < replicas_; ++shard) {
      if (!placement_.whole_states && shard != own) continue;
      uint64_t& state = rank.states.at(unit)[shard];
      state = Combine({kUpdated, state, rank.sums.at(unit)[shard], rank.result});
      rank.parameters.at(unit)[shard] = state;
    }
  }

  std::vector<uint64_t> Final() const {
    std::vector<uint64_t> state;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      const auto own = static_cast<size_t>(ReplicaOf(r));
      state.push_back(rank.result);
      for (const auto& [unit, symbols] : rank.states) state.push_back(Combine(symbols));
      for (const auto& [unit, symbols] : rank.parameters) {
        // On the rank of its owner a head end has no parameters of its own.
        if (ParametersUnit(units_, ProgramOf(r).units, unit) != unit) continue;
        state.push_back(placement_.whole_parameters ? Combine(symbols) : symbols[own]);
      }
    }
    return state;
  }

  const Plan& plan_;
  const std::vector<Program>& programs_;
  const std::vector<UnitSpec> units_;
  const Placement placement_;
  const size_t replicas_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<std::vector<int32_t>>> dependencies_;
  std::vector<std::vector<bool>> done_;
  std::vector<std::vector<Used>> used_;
  size_t remaining_ = 0;
  bool failed_ = false;
  uint64_t garbage_ = 0;
  Symbols missing_{0};
};

}  // namespace

std::optional<std::vector<uint64_t>> RunSymbols(const Plan& plan,
                                                const std::vector<Program>& programs,
                                                uint64_t seed) {
  return SymbolicRun(plan, programs, seed).Run();
}

}  // namespace esteira
