#include "common/plan/instruction.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

struct OpTraits {
  const char* name;
  Queue queue;
};

constexpr std::array<OpTraits, kNumOps> kOps = {{
    {"F", Queue::kCompute},
    {"B", Queue::kCompute},
    {"I", Queue::kCompute},
    {"W", Queue::kCompute},
    {"R", Queue::kCompute},
    {"SEND_ACT", Queue::kSendAct},
    {"RECV_ACT", Queue::kRecvAct},
    {"SEND_GRAD", Queue::kSendGrad},
    {"RECV_GRAD", Queue::kRecvGrad},
    {"GATHER", Queue::kShard},
    {"RELEASE", Queue::kShard},
    {"CLEAR", Queue::kCompute},
    {"REDUCE", Queue::kShard},
    {"TIE_GRAD", Queue::kShard},
    {"NORM", Queue::kShard},
    {"STEP", Queue::kCompute},
    {"TIE_PARAM", Queue::kShard},
}};

struct SlotField {
  const char* prefix;
  int32_t Instruction::*field;
};

constexpr std::array<SlotField, 7> kSlotFields = {{
    {"x", &Instruction::x},
    {"y", &Instruction::y},
    {"dx", &Instruction::dx},
    {"dy", &Instruction::dy},
    {"s", &Instruction::saved},
    {"p", &Instruction::slot},
    {"w", &Instruction::slot},
}};

constexpr char kJoined[] = " +";

bool HasWindowSlot(Op op) { return op == Op::kClear || op == Op::kReduce; }

char PeerMark(Op op) { return op == Op::kRecvAct || op == Op::kRecvGrad ? '<' : '>'; }

absl::Status Error(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("instruction \"", absl::CHexEscape(text), "\": ", what));
}

// Takes the leading digits off `text`; -1 when there are none, false when they are too many or
// start with a spare zero.
bool TakeNumber(absl::string_view& text, int32_t& number) {
  size_t length = 0;
  int64_t value = 0;
  while (length < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[length]))) {
    value = value * 10 + (text[length++] - '0');
    if (value > std::numeric_limits<int32_t>::max()) return false;
  }
  if (length > 1 && text[0] == '0') return false;
  number = length == 0 ? -1 : static_cast<int32_t>(value);
  text.remove_prefix(length);
  return true;
}

bool FindOp(absl::string_view name, Op& op) {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (name != kOps[i].name) continue;
    op = static_cast<Op>(i);
    return true;
  }
  return false;
}

// The first word: unit, op, micro-batch, peer.
absl::Status ParseHead(absl::string_view text, absl::string_view word, Instruction& instruction) {
  if (!TakeNumber(word, instruction.unit))
    return Error(text, "the unit is not a number below 2^31");
  size_t length = 0;
  while (length < word.size() &&
         (absl::ascii_isupper(static_cast<unsigned char>(word[length])) || word[length] == '_')) {
    ++length;
  }
  if (!FindOp(word.substr(0, length), instruction.op)) return Error(text, "no such op");
  word.remove_prefix(length);
  if (!TakeNumber(word, instruction.micro_batch)) {
    return Error(text, "the micro-batch is not a number below 2^31");
  }
  if (word.empty()) return absl::OkStatus();
  if (word[0] != PeerMark(instruction.op)) {
    return Error(text, absl::StrCat("expected \"", std::string(1, PeerMark(instruction.op)),
                                    "\" and a peer, or a space"));
  }
  word.remove_prefix(1);
  if (!TakeNumber(word, instruction.peer) || instruction.peer < 0 || !word.empty()) {
    return Error(text, "the peer is not a number below 2^31");
  }
  return absl::OkStatus();
}

absl::Status ParseSlot(absl::string_view text, absl::string_view word, Instruction& instruction) {
  size_t length = 0;
  while (length < word.size() && absl::ascii_islower(static_cast<unsigned char>(word[length]))) {
    ++length;
  }
  const absl::string_view prefix = word.substr(0, length);
  word.remove_prefix(length);
  for (const SlotField& slot : kSlotFields) {
    if (prefix != slot.prefix) continue;
    if (slot.field == &Instruction::slot && (prefix == "w") != HasWindowSlot(instruction.op)) break;
    int32_t& number = instruction.*slot.field;
    if (number != -1) return Error(text, absl::StrCat("two slots ", prefix));
    if (!TakeNumber(word, number) || number < 0 || !word.empty()) {
      return Error(text, absl::StrCat("slot ", prefix, " is not a number below 2^31"));
    }
    return absl::OkStatus();
  }
  return Error(text,
               "expected slots x, y, dx, dy, s, p (GATHER, RELEASE) or w (CLEAR, REDUCE), each "
               "with its number");
}

}  // namespace

bool IsCompute(Op op) { return op <= Op::kRecompute; }

bool IsPointToPoint(Op op) { return op >= Op::kSendAct && op <= Op::kRecvGrad; }

bool IsSend(Op op) { return op == Op::kSendAct || op == Op::kSendGrad; }

Queue QueueOf(Op op) { return kOps[static_cast<size_t>(op)].queue; }

const char* OpName(Op op) { return kOps[static_cast<size_t>(op)].name; }

const char* SlotKindName(SlotKind kind) {
  switch (kind) {
    case SlotKind::kActivation: return "activation";
    case SlotKind::kGradient: return "gradient";
    case SlotKind::kSaved: return "saved";
    case SlotKind::kParameters: return "parameters";
    case SlotKind::kWindow: return "window";
  }
  return "unknown";
}

std::string ToText(const Instruction& instruction) {
  std::string text;
  if (instruction.unit != -1) absl::StrAppend(&text, instruction.unit);
  absl::StrAppend(&text, OpName(instruction.op));
  if (instruction.micro_batch != -1) absl::StrAppend(&text, instruction.micro_batch);
  if (instruction.peer != -1) {
    text.push_back(PeerMark(instruction.op));
    absl::StrAppend(&text, instruction.peer);
  }
  for (const SlotField& slot : kSlotFields) {
    const int32_t number = instruction.*slot.field;
    if (number == -1) continue;
    const bool window = slot.prefix[0] == 'w';
    if (slot.field == &Instruction::slot && window != HasWindowSlot(instruction.op)) continue;
    absl::StrAppend(&text, " ", slot.prefix, number);
  }
  if (instruction.joined) absl::StrAppend(&text, kJoined);
  return text;
}

absl::StatusOr<Instruction> ParseInstruction(absl::string_view text) {
  Instruction instruction;
  absl::string_view words = text;
  instruction.joined = absl::ConsumeSuffix(&words, kJoined);
  const size_t head = std::min(words.find(' '), words.size());
  RETURN_IF_ERROR(ParseHead(text, words.substr(0, head), instruction));
  if (head == words.size()) return instruction;
  for (absl::string_view word : absl::StrSplit(words.substr(head + 1), ' ')) {
    RETURN_IF_ERROR(ParseSlot(text, word, instruction));
  }
  return instruction;
}

}  // namespace esteira
