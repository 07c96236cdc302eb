#include "client/plan_views/trace.h"

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace esteira {
namespace {

constexpr const char* kQueueNames[kNumQueues] = {
    "compute",        "send activations",  "receive activations",
    "send gradients", "receive gradients", "sharding"};

// What a send and its receive have in common: both stages, the direction, and the boundary between
// two units that they cross, for one micro-batch.
using Exchange = std::tuple<int, int, bool, int, int>;

Exchange ExchangeOf(int stage, const Instruction& instruction) {
  const bool send = IsSend(instruction.op);
  const bool gradient = instruction.op == Op::kSendGrad || instruction.op == Op::kRecvGrad;
  // Activations of unit u arrive at u + 1, gradients of u at u - 1.
  const int sender_unit = send ? instruction.unit : instruction.unit + (gradient ? 1 : -1);
  return {send ? stage : instruction.peer, send ? instruction.peer : stage, gradient, sender_unit,
          instruction.micro_batch};
}

class TraceWriter {
 public:
  void AddStage(const Program& program, const std::vector<Interval>& intervals) {
    Name("process_name", program.stage, -1, absl::StrCat("stage ", program.stage));
    Append(absl::StrFormat(
        R"({"ph":"M","pid":%d,"name":"process_sort_index","args":{"sort_index":%d}})",
        program.stage, program.stage));
    for (int queue = 0; queue < kNumQueues; ++queue) {
      Name("thread_name", program.stage, queue, kQueueNames[queue]);
      Append(absl::StrFormat(
          R"({"ph":"M","pid":%d,"tid":%d,"name":"thread_sort_index","args":{"sort_index":%d}})",
          program.stage, queue, queue));
    }
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].op == Op::kRelease) continue;  // takes no time and runs nowhere
      AddInstruction(program, program.instructions[i], intervals[i]);
    }
  }

  std::string Finish() {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events_, "\n]}\n");
  }

 private:
  void Append(const std::string& event) {
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n", event);
  }

  void Name(const char* what, int stage, int queue, const std::string& name) {
    const std::string thread = queue < 0 ? "" : absl::StrCat("\"tid\":", queue, ",");
    Append(absl::StrFormat(R"({"ph":"M","pid":%d,%s"name":"%s","args":{"name":"%s"}})", stage,
                           thread, what, name));
  }

  void AddInstruction(const Program& program, const Instruction& instruction,
                      const Interval& interval) {
    const int queue = static_cast<int>(QueueOf(instruction.op));
    std::string args;
    const auto add = [&](const char* name, int value) {
      if (value < 0) return;
      absl::StrAppend(&args, args.empty() ? "" : ",", "\"", name, "\":", value);
    };
    add("unit", instruction.unit);
    add("micro_batch", instruction.micro_batch);
    add("peer", instruction.peer);
    add("x", instruction.x);
    add("y", instruction.y);
    add("dx", instruction.dx);
    add("dy", instruction.dy);
    add("saved", instruction.saved);
    add("slot", instruction.slot);
    const double start = interval.start * 1e6;
    const double duration = (interval.end - interval.start) * 1e6;
    Append(absl::StrFormat(
        R"({"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":"%s","cat":"%s","args":{%s}})",
        program.stage, queue, start, duration, Label(instruction), OpName(instruction.op), args));
    if (!IsPointToPoint(instruction.op)) return;
    // An arrow ends at the event that encloses its point, so that the point lies within both.
    const bool send = IsSend(instruction.op);
    Append(absl::StrFormat(
        R"({"ph":"%s","pid":%d,"tid":%d,"ts":%.3f,"id":%d,"name":"transfer","cat":"transfer"%s})",
        send ? "s" : "f", program.stage, queue, start + (send ? 0 : duration / 2),
        IdOf(ExchangeOf(program.stage, instruction)), send ? "" : R"(,"bp":"e")"));
  }

  static std::string Label(const Instruction& instruction) {
    std::string label;
    if (instruction.unit >= 0) absl::StrAppend(&label, instruction.unit);
    absl::StrAppend(&label, OpName(instruction.op));
    if (instruction.micro_batch >= 0) absl::StrAppend(&label, instruction.micro_batch);
    return label;
  }

  int IdOf(const Exchange& exchange) {
    return ids_.emplace(exchange, static_cast<int>(ids_.size())).first->second;
  }

  std::string events_;
  std::map<Exchange, int> ids_;
};

}  // namespace

std::string ChromeTrace(const Plan& plan, const Execution& execution) {
  TraceWriter writer;
  for (size_t p = 0; p < plan.train.size(); ++p) {
    writer.AddStage(plan.train[p], execution.intervals[p]);
  }
  return writer.Finish();
}

}  // namespace esteira
