#include "common/plan/machine.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/dependencies.h"

namespace esteira {
namespace {

constexpr int kReportedStages = 4;

// An instruction, by the place of its program in the list and its own place in the program.
struct Place {
  int32_t program = 0;
  int32_t index = 0;
};

// What starts and ends at once: one instruction, or the instructions of a rendezvous or a
// collective, with all that are joined to it.
struct Node {
  std::vector<Place> members;  // program by program
  int expected_members = 0;
  int pending = 0;  // predecessors that have not ended, over all members
  double start = 0;
  double end = 0;
  bool done = false;
};

// Names a rendezvous: the same on all its members.
using MeetingKey = std::tuple<Op, int, int, int, int, int>;

// Since nothing depends on the time of day, the run is a longest path over the nodes: a node starts
// when the last of its predecessors ends, namely the instruction ahead on its queue and the
// dependencies, of each member.
class Machine {
 public:
  Machine(const Plan& plan, const std::vector<Program>& programs, const DurationFunction& duration)
      : plan_(plan), programs_(programs), duration_(duration) {}

  absl::StatusOr<Execution> Run() {
    const std::vector<UnitSpec> units = MakeUnits(plan_.model);
    node_of_.resize(programs_.size());
    for (size_t p = 0; p < programs_.size(); ++p) AddNodes(static_cast<int32_t>(p));
    predecessors_.resize(programs_.size());
    for (size_t p = 0; p < programs_.size(); ++p) {
      predecessors_[p] = Dependencies(units, PlacementOf(plan_.layout.zero), programs_[p]);
      AddQueueOrder(p);
    }
    LinkSuccessors();
    const size_t num_done = Advance();
    if (num_done < nodes_.size()) return Deadlock();
    return Intervals();
  }

 private:
  const Instruction& At(Place place) const {
    return programs_[static_cast<size_t>(place.program)]
        .instructions[static_cast<size_t>(place.index)];
  }
  Node& NodeOf(Place place) { return nodes_[static_cast<size_t>(NodeIndex(place))]; }
  int32_t NodeIndex(Place place) const {
    return node_of_[static_cast<size_t>(place.program)][static_cast<size_t>(place.index)];
  }

  // The members that a meeting waits for; 1: the instruction meets nobody.
  int ExpectedMembers(const Instruction& instruction) const {
    if (IsPointToPoint(instruction.op)) return 2;
    switch (instruction.op) {
      case Op::kNorm: return static_cast<int>(programs_.size());
      case Op::kTieGradient:
      case Op::kTieParameter: return instruction.peer == -1 ? 1 : 2;
      default: return 1;
    }
  }

  static MeetingKey KeyOf(const Program& program, const Instruction& i) {
    const int low = std::min(program.stage, i.peer);
    const int high = std::max(program.stage, i.peer);
    switch (i.op) {
      case Op::kSendAct:
      case Op::kSendGrad: return {i.op, program.stage, i.peer, i.unit, i.micro_batch, 0};
      case Op::kRecvAct: return {Op::kSendAct, i.peer, program.stage, i.unit - 1, i.micro_batch, 0};
      case Op::kRecvGrad:
        return {Op::kSendGrad, i.peer, program.stage, i.unit + 1, i.micro_batch, 0};
      case Op::kTieGradient:
      case Op::kTieParameter: return {i.op, low, high, -1, -1, 0};
      default: return {i.op, -1, -1, -1, -1, 0};
    }
  }

  // The n-th member that a program adds to a key belongs to the n-th meeting of that key.
  void AddNodes(int32_t p) {
    const Program& program = programs_[static_cast<size_t>(p)];
    std::map<std::pair<MeetingKey, bool>, int> repetitions;
    std::vector<int32_t>& node_of = node_of_[static_cast<size_t>(p)];
    node_of.reserve(program.instructions.size());
    int32_t group = -1;  // the node that the next instruction on the shard queue joins
    for (size_t index = 0; index < program.instructions.size(); ++index) {
      const Instruction& instruction = program.instructions[index];
      const bool on_shard_queue = IsOnShardQueue(instruction.op);
      const bool joins =
          on_shard_queue && group != -1 &&
          At(nodes_[static_cast<size_t>(group)].members.front()).op == instruction.op;
      const int expected = ExpectedMembers(instruction);
      int32_t node = static_cast<int32_t>(nodes_.size());
      if (expected > 1) {
        MeetingKey key = KeyOf(program, instruction);
        std::get<5>(key) = repetitions[{key, IsSend(instruction.op)}]++;
        if (!joins) node = meetings_.try_emplace(key, node).first->second;
      }
      if (joins) node = group;
      AddMember(node, {p, static_cast<int32_t>(index)}, expected);
      node_of.push_back(node);
      if (on_shard_queue) group = instruction.joined ? node : -1;
    }
  }

  // The program that comes first says how many members the node has.
  void AddMember(int32_t node, Place place, int expected) {
    if (node == static_cast<int32_t>(nodes_.size())) nodes_.emplace_back();
    Node& added = nodes_[static_cast<size_t>(node)];
    const bool first = added.members.empty() || added.members.front().program == place.program;
    if (first) added.expected_members += expected;
    added.members.push_back(place);
  }

  static bool IsOnShardQueue(Op op) { return op != Op::kRelease && QueueOf(op) == Queue::kShard; }

  void AddQueueOrder(size_t p) {
    std::array<int32_t, kNumQueues> last;
    last.fill(-1);
    for (size_t index = 0; index < programs_[p].instructions.size(); ++index) {
      const Op op = programs_[p].instructions[index].op;
      if (op == Op::kRelease) continue;
      int32_t& ahead = last[static_cast<size_t>(QueueOf(op))];
      if (ahead != -1) predecessors_[p][index].push_back(ahead);
      ahead = static_cast<int32_t>(index);
    }
  }

  void LinkSuccessors() {
    successors_.resize(nodes_.size());
    for (size_t p = 0; p < programs_.size(); ++p) {
      for (size_t index = 0; index < predecessors_[p].size(); ++index) {
        const int32_t node = node_of_[p][index];
        for (int32_t before : predecessors_[p][index]) {
          const int32_t other = node_of_[p][static_cast<size_t>(before)];
          if (other == node) continue;
          successors_[static_cast<size_t>(other)].push_back(node);
          ++nodes_[static_cast<size_t>(node)].pending;
        }
      }
    }
  }

  size_t Advance() {
    std::vector<int32_t> ready;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (Complete(nodes_[n]) && nodes_[n].pending == 0) ready.push_back(static_cast<int32_t>(n));
    }
    for (size_t next = 0; next < ready.size(); ++next) {
      Node& node = nodes_[static_cast<size_t>(ready[next])];
      node.end = node.start + Duration(node);
      node.done = true;
      for (int32_t successor : successors_[static_cast<size_t>(ready[next])]) {
        Node& other = nodes_[static_cast<size_t>(successor)];
        other.start = std::max(other.start, node.end);
        if (--other.pending == 0 && Complete(other)) ready.push_back(successor);
      }
    }
    return ready.size();
  }

  static bool Complete(const Node& node) {
    return static_cast<int>(node.members.size()) == node.expected_members;
  }

  // The longest over the programs of what its members there take together.
  double Duration(const Node& node) const {
    double longest = 0, sum = 0;
    int32_t program = -1;
    for (Place place : node.members) {
      if (At(place).op == Op::kRelease) return 0;
      if (place.program != program) sum = 0;
      program = place.program;
      sum += duration_(programs_[static_cast<size_t>(program)], At(place));
      longest = std::max(longest, sum);
    }
    return longest;
  }

  Execution Intervals() {
    Execution execution;
    execution.intervals.resize(programs_.size());
    for (size_t p = 0; p < programs_.size(); ++p) {
      execution.intervals[p].reserve(node_of_[p].size());
      for (int32_t n : node_of_[p]) {
        const Node& node = nodes_[static_cast<size_t>(n)];
        execution.intervals[p].push_back({node.start, node.end});
        execution.makespan = std::max(execution.makespan, node.end);
      }
    }
    return execution;
  }

  // The instructions at the heads of the queues of program `p`, none of which has ended.
  std::vector<Place> Heads(size_t p) {
    std::vector<Place> heads;
    std::array<bool, kNumQueues> blocked{};
    for (size_t index = 0; index < programs_[p].instructions.size(); ++index) {
      const Place place{static_cast<int32_t>(p), static_cast<int32_t>(index)};
      const Op op = At(place).op;
      bool& queue_blocked = blocked[static_cast<size_t>(QueueOf(op))];
      if (op == Op::kRelease || queue_blocked || NodeOf(place).done) continue;
      queue_blocked = true;
      heads.push_back(place);
    }
    return heads;
  }

  std::string WaitsFor(Place place) {
    const Node& node = NodeOf(place);
    for (Place member : node.members) {
      if (member.program != place.program) continue;
      const int32_t index = WaitsAtHome(member);
      if (index != -1) return absl::StrCat("its own ", ToText(At({place.program, index})));
    }
    if (!Complete(node)) {
      return absl::StrCat(node.expected_members, " stages to meet, of which ", node.members.size(),
                          " ever come");
    }
    for (Place member : node.members) {
      if (member.program == place.program) continue;
      const auto heads = Heads(static_cast<size_t>(member.program));
      const bool arrived = std::any_of(heads.begin(), heads.end(), [&](Place head) {
        return NodeIndex(head) == NodeIndex(member);
      });
      if (!arrived || WaitsAtHome(member) != -1) {
        return absl::StrCat("stage ", programs_[static_cast<size_t>(member.program)].stage,
                            " to reach ", ToText(At(member)));
      }
    }
    return "nothing";
  }

  // What it waits for on its own rank, outside its node; -1: nothing.
  int32_t WaitsAtHome(Place place) {
    for (int32_t index :
         predecessors_[static_cast<size_t>(place.program)][static_cast<size_t>(place.index)]) {
      const Place other{place.program, index};
      if (!NodeOf(other).done && NodeIndex(other) != NodeIndex(place)) return index;
    }
    return -1;
  }

  absl::Status Deadlock() {
    std::vector<std::string> lines;
    int stuck = 0;
    for (size_t p = 0; p < programs_.size(); ++p) {
      const std::vector<Place> heads = Heads(p);
      if (heads.empty() || ++stuck > kReportedStages) continue;
      std::vector<std::string> waits;
      waits.reserve(heads.size());
      for (Place head : heads) {
        waits.push_back(absl::StrCat("instruction ", head.index, " (", ToText(At(head)),
                                     ") waits for ", WaitsFor(head)));
      }
      lines.push_back(absl::StrCat("stage ", programs_[p].stage, ": ", absl::StrJoin(waits, ", ")));
    }
    if (stuck > kReportedStages)
      lines.push_back(absl::StrCat(stuck - kReportedStages, " more stages wait"));
    return absl::InvalidArgumentError(absl::StrCat("deadlock: ", absl::StrJoin(lines, "; ")));
  }

  const Plan& plan_;
  const std::vector<Program>& programs_;
  const DurationFunction& duration_;
  std::vector<Node> nodes_;
  std::map<MeetingKey, int32_t> meetings_;
  std::vector<std::vector<int32_t>> node_of_;                    // by program, by instruction
  std::vector<std::vector<std::vector<int32_t>>> predecessors_;  // by program, by instruction
  std::vector<std::vector<int32_t>> successors_;                 // by node
};

}  // namespace

absl::StatusOr<Execution> RunMachine(const Plan& plan, const std::vector<Program>& programs,
                                     const DurationFunction& duration) {
  return Machine(plan, programs, duration).Run();
}

}  // namespace esteira
