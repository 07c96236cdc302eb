// The text form of plans. One line a fact; a line is a word, then "name=value" pairs or values.
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/plan/plan.h"

namespace esteira {
namespace {

constexpr absl::string_view kFirstLine = "esteira plan 1";

// Shortest decimal that reads back as the same double.
std::string DoubleText(double value) {
  char buffer[64];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

// "k/g/full/l": windows, 0 for all; full or none; lookahead.
std::string PolicyText(const StagePolicy& policy) {
  return absl::StrCat(policy.reduce_every, "/", policy.gather_for, "/",
                      policy.recompute ? "full/" : "none/", policy.lookahead);
}

void PrintHeader(const Plan& plan, const std::vector<int>& workers, std::string& text) {
  const ModelSpec& model = plan.model;
  absl::StrAppend(&text, kFirstLine, "\nmodel architecture=", ArchitectureName(model.architecture),
                  " num_layers=", model.num_layers, " hidden_size=", model.hidden_size,
                  " num_heads=", model.num_heads, " num_kv_heads=", model.num_kv_heads,
                  " intermediate_size=", model.intermediate_size);
  absl::StrAppend(&text, " vocab_size=", model.vocab_size,
                  " max_sequence_length=", model.max_sequence_length,
                  " tie_embeddings=", model.tie_embeddings ? 1 : 0,
                  " norm_epsilon=", DoubleText(model.norm_epsilon),
                  " rope_theta=", DoubleText(model.rope_theta), "\n");
  const Layout& layout = plan.layout;
  absl::StrAppend(&text, "layout stages=", layout.stages,
                  " chunks_per_stage=", layout.chunks_per_stage, " replicas=", layout.replicas,
                  " zero=", layout.zero, " global_batch_size=", layout.global_batch_size,
                  " micro_batch_size=", layout.micro_batch_size,
                  " sequence_length=", layout.sequence_length,
                  " numerics=", NumericsName(layout.numerics),
                  " gradient_traffic=", GradientTrafficName(layout.gradient_traffic));
  absl::StrAppend(&text, " boundaries=", absl::StrJoin(layout.boundaries, ","), " policies=",
                  absl::StrJoin(layout.policies, ",",
                                [](std::string* out, const StagePolicy& policy) {
                                  out->append(PolicyText(policy));
                                }),
                  " workers=", absl::StrJoin(workers, ","), "\n");
  absl::StrAppend(&text, "schedule name=", absl::CHexEscape(layout.schedule), "\n");
  absl::StrAppend(&text, "precision name=", PrecisionName(plan.precision), "\n");
}

void PrintPrediction(const Prediction& prediction, std::string& text) {
  absl::StrAppend(
      &text, "prediction step_seconds=", DoubleText(prediction.step_seconds),
      " bubble_ratio=", DoubleText(prediction.bubble_ratio),
      " exposed_communication_ratio=", DoubleText(prediction.exposed_communication_ratio), "\n");
  absl::StrAppend(&text, "op_seconds");
  for (int op = 0; op < kNumOps; ++op) {
    absl::StrAppend(&text, " ", OpName(static_cast<Op>(op)), "=",
                    DoubleText(prediction.op_seconds[static_cast<size_t>(op)]));
  }
  absl::StrAppend(&text, "\n");
  for (const MemoryUse& use : prediction.memory) {
    absl::StrAppend(&text, "memory parameters=", use.parameters, " gradients=", use.gradients,
                    " optimizer=", use.optimizer, " slots=", use.slots,
                    " workspace=", use.workspace, "\n");
  }
}

void PrintProgram(const Program& program, std::string& text) {
  absl::StrAppend(&text, "stage ", program.stage, "\nunits ", absl::StrJoin(program.units, ","),
                  "\nslots");
  for (int kind = 0; kind < kNumSlotKinds; ++kind) {
    const std::vector<SlotClass>& classes = program.slots[static_cast<size_t>(kind)];
    absl::StrAppend(&text, " ", SlotKindName(static_cast<SlotKind>(kind)), "=",
                    absl::StrJoin(classes, ",", [](std::string* out, const SlotClass& slots) {
                      absl::StrAppend(out, slots.count, "*", slots.bytes);
                    }));
  }
  text.push_back('\n');
  for (const Instruction& instruction : program.instructions) {
    absl::StrAppend(&text, ToText(instruction), "\n");
  }
}

// `whole`: with where it was to run, and what was expected of it.
std::string Print(const Plan& plan, bool whole) {
  std::string text;
  PrintHeader(plan, whole ? plan.worker_of_rank : std::vector<int>(), text);
  if (whole) PrintPrediction(plan.prediction, text);
  absl::StrAppend(&text, "train\n");
  for (const Program& program : plan.train) PrintProgram(program, text);
  absl::StrAppend(&text, "evaluate\n");
  for (const Program& program : plan.evaluate) PrintProgram(program, text);
  return text;
}

// Reads the lines of a text in turn, and the values of one line. Errors name the line.
class Reader {
 public:
  explicit Reader(absl::string_view text) {
    if (absl::ConsumeSuffix(&text, "\n")) complete_ = true;
    lines_ = absl::StrSplit(text, '\n');
  }

  bool complete() const { return complete_; }
  bool AtEnd() const { return next_ == lines_.size(); }
  absl::string_view Peek() const { return AtEnd() ? absl::string_view("") : lines_[next_]; }
  void Skip() { ++next_; }
  bool At(absl::string_view word) const {
    absl::string_view line = Peek();
    return absl::ConsumePrefix(&line, word) && (line.empty() || line[0] == ' ');
  }

  // Of the line to be read next.
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("plan text, line ", next_ + 1, ": ", what));
  }

  absl::Status Expect(absl::string_view line) {
    if (Peek() != line) return Error(absl::StrCat("expected \"", line, "\""));
    Skip();
    return absl::OkStatus();
  }

  // The line "word name=value name=value ..." with exactly `names` in this order.
  absl::StatusOr<std::vector<absl::string_view>> Values(
      absl::string_view word, const std::vector<absl::string_view>& names) {
    std::vector<absl::string_view> words = absl::StrSplit(Peek(), ' ');
    if (words[0] != word || words.size() != names.size() + 1) {
      return Error(absl::StrCat("expected \"", word, "\" with ", absl::StrJoin(names, "=, "), "="));
    }
    std::vector<absl::string_view> values;
    for (size_t i = 0; i < names.size(); ++i) {
      absl::string_view value = words[i + 1];
      if (!absl::ConsumePrefix(&value, names[i]) || !absl::ConsumePrefix(&value, "=")) {
        return Error(absl::StrCat("expected ", names[i], "=, found \"",
                                  absl::CHexEscape(words[i + 1]), "\""));
      }
      values.push_back(value);
    }
    return values;
  }

  // Strict: digits with at most a sign in front, within the type.
  template <typename Int>
  absl::Status Number(absl::string_view text, Int& number) const {
    const std::from_chars_result result =
        std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
      return Error(absl::StrCat("\"", absl::CHexEscape(text), "\" is not a number in its range"));
    }
    return absl::OkStatus();
  }

  absl::Status Real(absl::string_view text, double& number) const {
    const std::from_chars_result result =
        std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size() ||
        !std::isfinite(number)) {
      return Error(absl::StrCat("\"", absl::CHexEscape(text), "\" is not a finite number"));
    }
    return absl::OkStatus();
  }

  template <typename Int>
  absl::Status Pair(absl::string_view text, char separator, Int& first, int64_t& second) const {
    const size_t at = text.find(separator);
    if (at == absl::string_view::npos) {
      return Error(absl::StrCat("\"", absl::CHexEscape(text), "\" has no \"",
                                std::string(1, separator), "\""));
    }
    RETURN_IF_ERROR(Number(text.substr(0, at), first));
    return Number(text.substr(at + 1), second);
  }

  absl::Status List(absl::string_view text, std::vector<int>& numbers) const {
    if (text.empty()) return absl::OkStatus();
    for (absl::string_view word : absl::StrSplit(text, ',')) {
      RETURN_IF_ERROR(Number(word, numbers.emplace_back()));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<absl::string_view> lines_;
  size_t next_ = 0;
  bool complete_ = false;  // the last line has its end
};

absl::Status ReadModel(Reader& reader, ModelSpec& model) {
  ASSIGN_OR_RETURN(const auto values,
                   reader.Values("model", {"architecture", "num_layers", "hidden_size", "num_heads",
                                           "num_kv_heads", "intermediate_size", "vocab_size",
                                           "max_sequence_length", "tie_embeddings", "norm_epsilon",
                                           "rope_theta"}));
  const absl::StatusOr<Architecture> architecture = ParseArchitecture(std::string(values[0]));
  if (!architecture.ok()) return reader.Error(architecture.status().message());
  model.architecture = *architecture;
  int64_t* const sizes[] = {&model.num_layers,         &model.hidden_size,       &model.num_heads,
                            &model.num_kv_heads,       &model.intermediate_size, &model.vocab_size,
                            &model.max_sequence_length};
  for (size_t i = 0; i < std::size(sizes); ++i)
    RETURN_IF_ERROR(reader.Number(values[i + 1], *sizes[i]));
  if (values[8] != "0" && values[8] != "1")
    return reader.Error("tie_embeddings is neither 0 nor 1");
  model.tie_embeddings = values[8] == "1";
  RETURN_IF_ERROR(reader.Real(values[9], model.norm_epsilon));
  RETURN_IF_ERROR(reader.Real(values[10], model.rope_theta));
  reader.Skip();
  return absl::OkStatus();
}

absl::Status ReadPolicies(Reader& reader, absl::string_view text,
                          std::vector<StagePolicy>& policies) {
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(word, '/');
    if (parts.size() != 4 || (parts[2] != "none" && parts[2] != "full")) {
      return reader.Error("a policy is not reduce_every/gather_for/(none or full)/lookahead");
    }
    StagePolicy& policy = policies.emplace_back();
    RETURN_IF_ERROR(reader.Number(parts[0], policy.reduce_every));
    RETURN_IF_ERROR(reader.Number(parts[1], policy.gather_for));
    policy.recompute = parts[2] == "full";
    RETURN_IF_ERROR(reader.Number(parts[3], policy.lookahead));
  }
  return absl::OkStatus();
}

absl::Status ReadLayout(Reader& reader, Plan& plan) {
  Layout& layout = plan.layout;
  ASSIGN_OR_RETURN(const auto values,
                   reader.Values("layout", {"stages", "chunks_per_stage", "replicas", "zero",
                                            "global_batch_size", "micro_batch_size",
                                            "sequence_length", "numerics", "gradient_traffic",
                                            "boundaries", "policies", "workers"}));
  int* const counts[] = {&layout.stages, &layout.chunks_per_stage, &layout.replicas, &layout.zero};
  for (size_t i = 0; i < std::size(counts); ++i)
    RETURN_IF_ERROR(reader.Number(values[i], *counts[i]));
  RETURN_IF_ERROR(reader.Number(values[4], layout.global_batch_size));
  RETURN_IF_ERROR(reader.Number(values[5], layout.micro_batch_size));
  RETURN_IF_ERROR(reader.Number(values[6], layout.sequence_length));
  const absl::StatusOr<Numerics> numerics = ParseNumerics(std::string(values[7]));
  if (!numerics.ok()) return reader.Error(numerics.status().message());
  layout.numerics = *numerics;
  const absl::StatusOr<GradientTraffic> traffic = ParseGradientTraffic(std::string(values[8]));
  if (!traffic.ok()) return reader.Error(traffic.status().message());
  layout.gradient_traffic = *traffic;
  RETURN_IF_ERROR(reader.List(values[9], layout.boundaries));
  layout.policies.clear();
  RETURN_IF_ERROR(ReadPolicies(reader, values[10], layout.policies));
  RETURN_IF_ERROR(reader.List(values[11], plan.worker_of_rank));
  reader.Skip();
  absl::string_view line = reader.Peek();
  std::string error;
  if (!absl::ConsumePrefix(&line, "schedule name="))
    return reader.Error("expected \"schedule name=\"");
  if (!absl::CUnescape(line, &layout.schedule, &error)) return reader.Error(error);
  reader.Skip();
  return absl::OkStatus();
}

absl::Status ReadPrecision(Reader& reader, Precision& precision) {
  ASSIGN_OR_RETURN(const auto values, reader.Values("precision", {"name"}));
  const absl::StatusOr<Precision> parsed = ParsePrecision(std::string(values[0]));
  if (!parsed.ok()) return reader.Error(parsed.status().message());
  precision = *parsed;
  reader.Skip();
  return absl::OkStatus();
}

absl::Status ReadPrediction(Reader& reader, Prediction& prediction) {
  ASSIGN_OR_RETURN(const auto values, reader.Values("prediction", {"step_seconds", "bubble_ratio",
                                                                   "exposed_communication_ratio"}));
  RETURN_IF_ERROR(reader.Real(values[0], prediction.step_seconds));
  RETURN_IF_ERROR(reader.Real(values[1], prediction.bubble_ratio));
  RETURN_IF_ERROR(reader.Real(values[2], prediction.exposed_communication_ratio));
  reader.Skip();
  std::vector<absl::string_view> names;
  names.reserve(kNumOps);
  for (int op = 0; op < kNumOps; ++op) names.emplace_back(OpName(static_cast<Op>(op)));
  ASSIGN_OR_RETURN(const auto seconds, reader.Values("op_seconds", names));
  for (size_t op = 0; op < seconds.size(); ++op) {
    RETURN_IF_ERROR(reader.Real(seconds[op], prediction.op_seconds[op]));
  }
  reader.Skip();
  while (reader.At("memory")) {
    ASSIGN_OR_RETURN(
        const auto parts,
        reader.Values("memory", {"parameters", "gradients", "optimizer", "slots", "workspace"}));
    MemoryUse& use = prediction.memory.emplace_back();
    int64_t* const bytes[] = {&use.parameters, &use.gradients, &use.optimizer, &use.slots,
                              &use.workspace};
    for (size_t i = 0; i < std::size(bytes); ++i)
      RETURN_IF_ERROR(reader.Number(parts[i], *bytes[i]));
    reader.Skip();
  }
  return absl::OkStatus();
}

// The lines of a program before its instructions.
absl::Status ReadProgramHeader(Reader& reader, Program& program) {
  const std::vector<absl::string_view> words = absl::StrSplit(reader.Peek(), ' ');
  if (words.size() != 2) return reader.Error("expected \"stage S\"");
  RETURN_IF_ERROR(reader.Number(words[1], program.stage));
  reader.Skip();
  absl::string_view line = reader.Peek();
  if (!absl::ConsumePrefix(&line, "units ")) return reader.Error("expected \"units \"");
  RETURN_IF_ERROR(reader.List(line, program.units));
  reader.Skip();
  std::vector<absl::string_view> names;
  names.reserve(kNumSlotKinds);
  for (int kind = 0; kind < kNumSlotKinds; ++kind)
    names.emplace_back(SlotKindName(static_cast<SlotKind>(kind)));
  ASSIGN_OR_RETURN(const auto values, reader.Values("slots", names));
  for (size_t kind = 0; kind < values.size(); ++kind) {
    if (values[kind].empty()) continue;
    for (absl::string_view word : absl::StrSplit(values[kind], ',')) {
      SlotClass& slots = program.slots[kind].emplace_back();
      RETURN_IF_ERROR(reader.Pair(word, '*', slots.count, slots.bytes));
    }
  }
  reader.Skip();
  return absl::OkStatus();
}

absl::Status ReadPrograms(Reader& reader, std::vector<Program>& programs) {
  while (reader.At("stage")) {
    Program& program = programs.emplace_back();
    RETURN_IF_ERROR(ReadProgramHeader(reader, program));
    while (!reader.AtEnd() && !reader.At("stage") && !reader.At("evaluate")) {
      absl::StatusOr<Instruction> instruction = ParseInstruction(reader.Peek());
      if (!instruction.ok()) return reader.Error(instruction.status().message());
      program.instructions.push_back(*instruction);
      reader.Skip();
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string PrintPlan(const Plan& plan) { return Print(plan, /*whole=*/true); }

absl::StatusOr<Plan> ParsePlan(absl::string_view text) {
  Reader reader(text);
  Plan plan;
  RETURN_IF_ERROR(reader.Expect(kFirstLine));
  RETURN_IF_ERROR(ReadModel(reader, plan.model));
  RETURN_IF_ERROR(ReadLayout(reader, plan));
  RETURN_IF_ERROR(ReadPrecision(reader, plan.precision));
  RETURN_IF_ERROR(ReadPrediction(reader, plan.prediction));
  RETURN_IF_ERROR(reader.Expect("train"));
  RETURN_IF_ERROR(ReadPrograms(reader, plan.train));
  RETURN_IF_ERROR(reader.Expect("evaluate"));
  RETURN_IF_ERROR(ReadPrograms(reader, plan.evaluate));
  if (!reader.AtEnd()) return reader.Error("expected \"stage S\" or the end");
  if (!reader.complete()) return reader.Error("the last line is cut off");
  return plan;
}

std::string PlanDigest(const Plan& plan) { return Sha256Hex(Print(plan, /*whole=*/false)); }

}  // namespace esteira
