// Whether groups of joined instructions can run as one: all of one op, small enough for the scratch
// of a rank, and nothing in the midst of a group waits for its end.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/dependencies.h"
#include "common/plan/shard_map.h"
#include "common/plan/validate/checks.h"

namespace esteira::validate {
namespace {

constexpr char kCheck[] = "joins";

class JoinCheck {
 public:
  explicit JoinCheck(const Subject& subject) : subject_(subject), context_(subject.context) {
    for (int unit : subject.program.units) largest_ = std::max(largest_, PaddedElements(unit));
  }

  absl::Status Run() {
    for (size_t i = 0; i < Count(); ++i) {
      const Instruction& instruction = At(i);
      if (instruction.joined) RETURN_IF_ERROR(CheckJoinable(i));
      if (!IsOnShardQueue(instruction.op)) continue;
      if (!group_.empty() && instruction.op != At(group_.back()).op) return NoNext();
      if (!group_.empty() || instruction.joined) group_.push_back(i);
      if (!instruction.joined) RETURN_IF_ERROR(CloseGroup());
    }
    return group_.empty() ? absl::OkStatus() : NoNext();
  }

 private:
  static bool IsOnShardQueue(Op op) { return op != Op::kRelease && QueueOf(op) == Queue::kShard; }
  size_t Count() const { return subject_.program.instructions.size(); }
  const Instruction& At(size_t index) const { return subject_.program.instructions[index]; }
  int64_t PaddedElements(int unit) const {
    return ShardMap(context_.unit(unit).flat_elements, context_.plan.layout.replicas)
        .padded_elements();
  }

  absl::Status CheckJoinable(size_t index) const {
    const Op op = At(index).op;
    if (context_.phase < Phase::kJoined) {
      return FaultAt(kCheck, subject_, index, "it not joined in this phase");
    }
    const bool in_place = op == Op::kGather && context_.placement.whole_parameters;
    if (op == Op::kReduce || in_place) return absl::OkStatus();
    return FaultAt(kCheck, subject_, index, "only REDUCE, and GATHER in place, joined");
  }

  absl::Status NoNext() const {
    return FaultAt(
        kCheck, subject_, group_.back(),
        absl::StrCat(OpName(At(group_.back()).op), " next on its queue, to which it is joined"));
  }

  absl::Status CloseGroup() {
    const std::vector<size_t> group = std::exchange(group_, {});
    if (group.empty()) return absl::OkStatus();
    int64_t elements = 0;
    for (size_t member : group) elements += PaddedElements(At(member).unit);
    if (At(group.back()).op == Op::kReduce && elements > largest_) {
      return FaultAt(kCheck, subject_, group.back(),
                     absl::StrCat("at most ", largest_,
                                  " elements joined, as of the largest unit, "
                                  "found ",
                                  elements));
    }
    return CheckBetween(group);
  }

  // A rank issues its program in order: what is in the midst of a group cannot wait for it.
  absl::Status CheckBetween(const std::vector<size_t>& group) {
    if (group.back() - group.front() + 1 == group.size()) return absl::OkStatus();
    if (dependencies_.empty()) {
      dependencies_ = Dependencies(context_.units, context_.placement, subject_.program);
    }
    for (size_t i = group.front(); i < group.back(); ++i) {
      for (int32_t other : dependencies_[i]) {
        if (!std::binary_search(group.begin(), group.end(), static_cast<size_t>(other))) continue;
        return FaultAt(kCheck, subject_, i,
                       absl::StrCat("it behind ", ToText(At(group.back())), ", with which ",
                                    ToText(At(static_cast<size_t>(other))), " ends"));
      }
    }
    return absl::OkStatus();
  }

  const Subject& subject_;
  const Context& context_;
  int64_t largest_ = 0;
  std::vector<size_t> group_;                       // the open one
  std::vector<std::vector<int32_t>> dependencies_;  // once needed
};

}  // namespace

absl::Status CheckJoins(const Subject& subject) { return JoinCheck(subject).Run(); }

}  // namespace esteira::validate
