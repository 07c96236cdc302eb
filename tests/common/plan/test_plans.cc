#include "tests/common/plan/test_plans.h"

#include <algorithm>
#include <array>

#include "common/base/status_macros.h"
#include "common/plan/sizes.h"

namespace esteira {
namespace {

// One class of each kind, as many slots as the larger number in either program, as large as the
// largest unit needs.
void SetSlots(const Plan& plan, Program& train, Program& evaluate) {
  std::array<int32_t, kNumSlotKinds> counts{};
  const auto count = [&counts](SlotKind kind, int32_t number) {
    int32_t& slots = counts[static_cast<size_t>(kind)];
    slots = std::max(slots, number + 1);
  };
  for (const Program* program : {&train, &evaluate}) {
    for (const Instruction& i : program->instructions) {
      const bool window = i.op == Op::kClear || i.op == Op::kReduce;
      for (int32_t number : {i.x, i.y}) count(SlotKind::kActivation, number);
      for (int32_t number : {i.dx, i.dy}) count(SlotKind::kGradient, number);
      count(SlotKind::kSaved, i.saved);
      count(window ? SlotKind::kWindow : SlotKind::kParameters, i.slot);
    }
  }
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  for (size_t kind = 0; kind < kNumSlotKinds; ++kind) {
    int64_t bytes = 0;
    for (int held : train.units) {
      bytes =
          std::max(bytes, SlotBytes(plan.model, plan.layout, plan.precision,
                                    units[static_cast<size_t>(held)], static_cast<SlotKind>(kind)));
    }
    if (counts[kind] > 0) train.slots[kind] = {{bytes, counts[kind]}};
  }
  evaluate.slots = train.slots;
}

Program MakeProgram(int stage, const std::vector<int>& units,
                    const std::vector<std::string>& lines) {
  Program program;
  program.stage = stage;
  program.units = units;
  for (const std::string& line : lines) {
    absl::StatusOr<Instruction> instruction = ParseInstruction(line);
    CHECK(instruction.ok());
    program.instructions.push_back(*instruction);
  }
  return program;
}

Plan Filtered(Plan plan, bool (*keeps)(Op)) {
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) {
      std::erase_if(program.instructions, [keeps](const Instruction& i) { return !keeps(i.op); });
    }
  }
  return plan;
}

std::string TextWithoutPeer(Instruction instruction) {
  instruction.peer = -1;
  return ToText(instruction);
}

}  // namespace

ModelSpec TinyModel(int64_t num_layers, bool tied) {
  ModelSpec model;
  model.architecture = Architecture::kGpt2;
  model.num_layers = num_layers;
  model.hidden_size = 8;
  model.num_heads = 2;
  model.num_kv_heads = 2;
  model.intermediate_size = 16;
  model.vocab_size = 32;
  model.max_sequence_length = 4;
  model.tie_embeddings = tied;
  return model;
}

Plan MakeHandMadePlan(const ModelSpec& model, const Layout& layout,
                      const std::vector<HandMadeStage>& stages) {
  Plan plan;
  plan.model = model;
  plan.layout = layout;
  for (int s = 0; s < layout.stages; ++s) {
    const HandMadeStage& stage = stages[static_cast<size_t>(s)];
    plan.train.push_back(MakeProgram(s, stage.units, stage.train));
    plan.evaluate.push_back(MakeProgram(s, stage.units, stage.evaluate));
    SetSlots(plan, plan.train.back(), plan.evaluate.back());
  }
  return plan;
}

Plan TwoStagePlan() {
  Layout layout;
  layout.stages = 2;
  layout.SetPolicies({});
  layout.replicas = 2;
  layout.zero = 1;
  layout.boundaries = {0, 2, 3};
  layout.global_batch_size = 4;
  layout.micro_batch_size = 1;
  layout.sequence_length = 4;
  HandMadeStage first;
  first.units = {0, 1};
  first.train = {"0F0 y0",
                 "1F0 x0 y1 s0",
                 "1SEND_ACT0>1 y1",
                 "0F1 y2",
                 "1F1 x2 y1 s1",
                 "1SEND_ACT1>1 y1",
                 "0CLEAR",
                 "1CLEAR",
                 "1RECV_GRAD0<1 dy0",
                 "1B0 x0 dx1 dy0 s0",
                 "0B0 dy1",
                 "1RECV_GRAD1<1 dy0",
                 "1B1 x2 dx1 dy0 s1",
                 "1REDUCE",
                 "0B1 dy1",
                 "0REDUCE",
                 "NORM",
                 "0STEP",
                 "1STEP",
                 "0GATHER",
                 "1GATHER"};
  first.evaluate = {"0F0 y0",          "1F0 x0 y1 s0", "1SEND_ACT0>1 y1", "0F1 y0", "1F1 x0 y1 s0",
                    "1SEND_ACT1>1 y1", "NORM"};
  HandMadeStage last;
  last.units = {2};
  last.train = {"2RECV_ACT0<0 x0",
                "2F0 x0 s0",
                "2CLEAR",
                "2B0 x0 dx0 s0",
                "2SEND_GRAD0>0 dx0",
                "2RECV_ACT1<0 x0",
                "2F1 x0 s0",
                "2B1 x0 dx0 s0",
                "2SEND_GRAD1>0 dx0",
                "2REDUCE",
                "NORM",
                "2STEP",
                "2GATHER"};
  last.evaluate = {"2RECV_ACT0<0 x0", "2F0 x0 s0", "2RECV_ACT1<0 x0", "2F1 x0 s0", "NORM"};
  return MakeHandMadePlan(TinyModel(1, false), layout, {first, last});
}

Plan OneRankPlan() {
  Layout layout;
  layout.zero = 3;
  layout.SetPolicies({.reduce_every = 1, .recompute = true});
  layout.boundaries = {0, 3};
  layout.global_batch_size = 2;
  layout.micro_batch_size = 1;
  layout.sequence_length = 4;
  HandMadeStage stage;
  stage.units = {0, 1, 2, 3, 4};
  const auto step = [&stage](const std::string& j) {
    for (const char* line : {"0GATHER p0", "1GATHER p1", "2GATHER p2", "3GATHER p3"})
      stage.train.push_back(line);
    stage.train.insert(stage.train.end(),
                       {"0F" + j + " y0", "1F" + j + " x0 y1", "2F" + j + " x1 s1"});
    for (const char* line : {"0CLEAR w0", "1CLEAR w1", "2CLEAR w2", "3CLEAR w3", "4CLEAR w4"}) {
      stage.train.push_back(line);
    }
    stage.train.insert(
        stage.train.end(),
        {"2I" + j + " x1 dx0 s1", "1R" + j + " x0 s0", "1I" + j + " x0 dx1 dy0 s0",
         "0I" + j + " dy1", "2W" + j + " x1 s1", "1W" + j + " x0 dy0 s0", "0W" + j + " dy1"});
    for (const char* line : {"2REDUCE w2", "4REDUCE w4", "1REDUCE w1", "0REDUCE w0", "3REDUCE w3",
                             "0RELEASE p0", "1RELEASE p1", "2RELEASE p2", "3RELEASE p3"}) {
      stage.train.push_back(line);
    }
  };
  step("0");
  step("1");
  for (const char* line : {"4TIE_GRAD", "NORM", "0STEP", "1STEP", "2STEP", "3STEP"})
    stage.train.push_back(line);
  stage.evaluate = {"0GATHER p0",   "1GATHER p1",  "2GATHER p2",  "3GATHER p3",   "0F0 y0",
                    "1F0 x0 y1 s0", "2F0 x1 s0",   "0F1 y0",      "1F1 x0 y1 s0", "2F1 x1 s0",
                    "NORM",         "0RELEASE p0", "1RELEASE p1", "2RELEASE p2",  "3RELEASE p3"};
  return MakeHandMadePlan(TinyModel(1, true), layout, {stage});
}

Plan VShapePlan() {
  Layout layout;
  layout.stages = 2;
  layout.SetPolicies({});
  layout.chunks_per_stage = 2;
  layout.replicas = 2;
  layout.zero = 2;
  layout.boundaries = {0, 1, 2, 3, 4};
  layout.global_batch_size = 4;
  layout.micro_batch_size = 1;
  layout.sequence_length = 4;
  HandMadeStage ends;
  ends.units = {0, 3, 4, 5};
  ends.train = {"0F0 y0",
                "0SEND_ACT0>1 y0",
                "0F1 y1",
                "0SEND_ACT1>1 y1",
                "3RECV_ACT0<1 x0",
                "3F0 x0 s0",
                "3CLEAR w0",
                "5CLEAR w1",
                "3B0 x0 dx0 s0",
                "3SEND_GRAD0>1 dx0",
                "3RECV_ACT1<1 x1",
                "3F1 x1 s0",
                "3B1 x1 dx1 s0",
                "3SEND_GRAD1>1 dx1",
                "3REDUCE w0",
                "5REDUCE w1",
                "0RECV_GRAD0<1 dy0",
                "0CLEAR w0",
                "4CLEAR w1",
                "0B0 dy0",
                "0RECV_GRAD1<1 dy0",
                "0B1 dy0",
                "0REDUCE w0",
                "4REDUCE w1",
                "5TIE_GRAD",
                "NORM",
                "0STEP",
                "3STEP",
                "4STEP",
                "0GATHER",
                "3GATHER",
                "4GATHER"};
  ends.evaluate = {"0F0 y0",          "0SEND_ACT0>1 y0", "0F1 y0",
                   "0SEND_ACT1>1 y0", "3RECV_ACT0<1 x1", "3F0 x1 s0",
                   "3RECV_ACT1<1 x1", "3F1 x1 s0",       "NORM"};
  HandMadeStage blocks;
  blocks.units = {1, 2};
  blocks.train = {"1RECV_ACT0<0 x0",
                  "1F0 x0 y1 s0",
                  "2F0 x1 y2 s1",
                  "2SEND_ACT0>0 y2",
                  "1RECV_ACT1<0 x2",
                  "1F1 x2 y3 s2",
                  "2F1 x3 y4 s3",
                  "2SEND_ACT1>0 y4",
                  "1CLEAR w0",
                  "2CLEAR w1",
                  "2RECV_GRAD0<0 dy0",
                  "2I0 x1 dx1 dy0 s1",
                  "1I0 x0 dx2 dy1 s0",
                  "1SEND_GRAD0>0 dx2",
                  "2W0 x1 dy0 s1",
                  "1W0 x0 dy1 s0",
                  "2RECV_GRAD1<0 dy0",
                  "2B1 x3 dx1 dy0 s3",
                  "1I1 x2 dx2 dy1 s2",
                  "1SEND_GRAD1>0 dx2",
                  "1W1 x2 dy1 s2",
                  "2REDUCE w1",
                  "1REDUCE w0",
                  "NORM",
                  "1STEP",
                  "2STEP",
                  "1GATHER",
                  "2GATHER"};
  blocks.evaluate = {"1RECV_ACT0<0 x0", "1F0 x0 y1 s0",    "2F0 x1 y2 s0",
                     "2SEND_ACT0>0 y2", "1RECV_ACT1<0 x0", "1F1 x0 y1 s0",
                     "2F1 x1 y2 s0",    "2SEND_ACT1>0 y2", "NORM"};
  return MakeHandMadePlan(TinyModel(2, true), layout, {ends, blocks});
}

Plan WithoutSlots(Plan plan) {
  for (std::vector<Program>* programs : {&plan.train, &plan.evaluate}) {
    for (Program& program : *programs) {
      program.slots = {};
      for (Instruction& i : program.instructions) i.x = i.y = i.dx = i.dy = i.saved = i.slot = -1;
    }
  }
  return plan;
}

Plan OnlyExchanges(Plan plan) {
  return Filtered(WithoutSlots(std::move(plan)),
                  [](Op op) { return IsCompute(op) || IsPointToPoint(op); });
}

Plan OnlyCompute(Plan plan) { return Filtered(WithoutSlots(std::move(plan)), IsCompute); }

size_t Find(const Program& program, const std::string& text) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (TextWithoutPeer(program.instructions[i]) == text) return i;
  }
  CHECK(false && "no such instruction");
  return 0;
}

void Remove(Plan& plan, int stage, const std::string& text) {
  Program& program = plan.train[static_cast<size_t>(stage)];
  program.instructions.erase(program.instructions.begin() +
                             static_cast<ptrdiff_t>(Find(program, text)));
}

void Replace(Plan& plan, int stage, const std::string& text, const std::string& replacement) {
  Program& program = plan.train[static_cast<size_t>(stage)];
  Instruction& instruction = program.instructions[Find(program, text)];
  Instruction other = ParseInstruction(replacement).value();
  other.peer = instruction.peer;
  instruction = other;
}

void MoveBefore(Plan& plan, int stage, const std::string& text, const std::string& before) {
  Program& program = plan.train[static_cast<size_t>(stage)];
  const size_t from = Find(program, text);
  const Instruction moved = program.instructions[from];
  program.instructions.erase(program.instructions.begin() + static_cast<ptrdiff_t>(from));
  program.instructions.insert(
      program.instructions.begin() + static_cast<ptrdiff_t>(Find(program, before)), moved);
}

}  // namespace esteira
