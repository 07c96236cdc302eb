// Views of plans, on small plans written by hand and durations that are easy to add up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/plan_views/comparison.h"
#include "client/plan_views/stage_memory.h"
#include "client/plan_views/svg_chart.h"
#include "client/plan_views/text_chart.h"
#include "client/plan_views/trace.h"
#include "client/plan_views/waits.h"
#include "common/base/file_system.h"
#include "common/plan/dependencies.h"
#include "common/plan/time_use.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// F, I, W and R of a unit take 1, B takes 2, sharding 1, a transfer a quarter, the rest nothing.
double Duration(const Program& /*program*/, const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kForward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kRecompute:
    case Op::kGather:
    case Op::kReduce: return 1;
    case Op::kBackward: return 2;
    case Op::kSendAct:
    case Op::kRecvAct:
    case Op::kSendGrad:
    case Op::kRecvGrad: return 0.25;
    default: return 0;
  }
}

struct Step {
  Plan plan;
  Execution execution;
  StepChart chart;
};

Step StepOf(Plan plan) {
  Step step;
  step.plan = std::move(plan);
  absl::StatusOr<Execution> execution = RunMachine(step.plan, step.plan.train, Duration);
  EXPECT_TRUE(execution.ok()) << execution.status();
  step.execution = *std::move(execution);
  step.chart = MakeStepChart(step.plan, step.execution);
  for (size_t stage = 0; stage < step.plan.train.size(); ++stage) {
    const auto use = static_cast<int64_t>(stage + 1) << 20;
    step.plan.prediction.memory.push_back({.parameters = use,
                                           .gradients = 2 * use,
                                           .optimizer = 6 * use,
                                           .slots = 4 * use,
                                           .workspace = use / 2});
  }
  return step;
}

// `stages` rows that do `micro_batches` forward passes of a second each, one after the other.
StepChart LargeChart(int stages, int micro_batches) {
  StepChart chart;
  chart.seconds = micro_batches;
  for (int stage = 0; stage < stages; ++stage) {
    StageRow row;
    row.stage = stage;
    row.busy = 1;
    for (int j = 0; j < micro_batches; ++j) {
      row.passes.push_back({Activity::kForward, 0, j, 1.0 * j, j + 1.0});
      row.pieces.push_back({Activity::kForward, j, 1.0 * j, j + 1.0});
    }
    chart.rows.push_back(std::move(row));
  }
  return chart;
}

std::vector<std::string> Lines(const std::string& text) { return absl::StrSplit(text, '\n'); }

std::string WithoutColors(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// The file in tests/golden, which ESTEIRA_UPDATE_GOLDEN=1 writes anew.
void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(ESTEIRA_SOURCE_DIR "/tests/golden/", name);
  RealFileSystem files;
  if (std::getenv("ESTEIRA_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(files, path, text).ok());
  }
  const absl::StatusOr<std::string> golden = files.Read(path);
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_EQ(text, *golden) << path;
}

// Elements nest, attributes are quoted, and text has no bare mark-up.
void ExpectXml(const std::string& text) {
  std::vector<std::string> open;
  size_t at = 0;
  while ((at = text.find('<', at)) != std::string::npos) {
    const size_t end = text.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = text.substr(at + 1, end - at - 1);
    ASSERT_FALSE(tag.empty());
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
  for (at = text.find('&'); at != std::string::npos; at = text.find('&', at + 1)) {
    const std::string entity = text.substr(at, text.find(';', at) - at + 1);
    EXPECT_TRUE((std::set<std::string>{"&lt;", "&gt;", "&amp;", "&quot;"}.count(entity))) << entity;
  }
}

TEST(StepChart, AStepIsBusyOrIdleAndNothingElse) {
  for (Plan plan : {TwoStagePlan(), VShapePlan(), OneRankPlan()}) {
    const Step step = StepOf(std::move(plan));
    ASSERT_EQ(step.chart.rows.size(), static_cast<size_t>(step.plan.layout.stages));
    for (const StageRow& row : step.chart.rows) {
      EXPECT_NEAR(row.busy + row.bubble + row.exposed_communication, 1, 1e-9) << row.stage;
      double end = 0;
      for (const Piece& piece : row.pieces) {
        EXPECT_GE(piece.start, end);
        end = piece.end;
      }
    }
  }
}

TEST(StepChart, IdlenessIsAsTimeUseHasIt) {
  for (Plan plan : {TwoStagePlan(), VShapePlan(), OneRankPlan()}) {
    const Step step = StepOf(std::move(plan));
    const double seconds = step.chart.seconds;
    for (const StageRow& row : step.chart.rows) {
      const auto stage = static_cast<size_t>(row.stage);
      const Program& program = step.plan.train[stage];
      const TimeUse use = MeasureTimeUse(
          program,
          Dependencies(MakeUnits(step.plan.model), PlacementOf(step.plan.layout.zero), program),
          step.execution.intervals[stage]);
      EXPECT_NEAR(row.busy, use.compute / seconds, 1e-9);
      EXPECT_NEAR(row.exposed_communication, use.exposed_communication() / seconds, 1e-9);
      // A rank that is done before the others waits for them.
      EXPECT_NEAR(row.bubble, (use.bubble() + seconds - use.step) / seconds, 1e-9);
    }
  }
}

TEST(StepChart, PassesAreMicroBatchesOfChunks) {
  const Step step = StepOf(VShapePlan());
  std::set<std::tuple<int, int, Activity>> passes;
  for (const Pass& pass : step.chart.rows[0].passes) {
    passes.emplace(pass.chunk, pass.micro_batch, pass.activity);
  }
  for (int chunk : {0, 1}) {
    for (int micro_batch : {0, 1}) {
      EXPECT_TRUE(passes.count({chunk, micro_batch, Activity::kForward}))
          << chunk << " " << micro_batch;
    }
  }
}

TEST(StepChart, RecomputationBelongsToItsBackwardPass) {
  const Step step = StepOf(OneRankPlan());
  bool recomputed = false;
  for (const Piece& piece : step.chart.rows[0].pieces) {
    if (piece.activity != Activity::kRecompute) continue;
    recomputed = true;
    EXPECT_EQ(step.chart.rows[0].passes[static_cast<size_t>(piece.pass)].activity,
              Activity::kBackwardInput);
  }
  EXPECT_TRUE(recomputed);
}

TEST(StepChart, HeldMicroBatchesAreThoseBetweenForwardAndBackward) {
  EXPECT_EQ(StepOf(TwoStagePlan()).chart.rows[0].held_micro_batches, 2);
  EXPECT_EQ(StepOf(TwoStagePlan()).chart.rows[1].held_micro_batches, 1);
}

TEST(Rasterize, AColumnIsWhatFillsMostOfIt) {
  StageRow row;
  row.passes = {{Activity::kForward, 0, 7, 0, 4}};
  row.pieces = {{Activity::kForward, 0, 0, 4}, {Activity::kUpdate, -1, 4, 5.2}};
  row.idle = {{Idleness::kCommunication, 5.2, 7.2}, {Idleness::kStages, 7.2, 10}};
  std::string kinds;
  for (const Column& column : Rasterize(row, 10, 5)) {
    kinds += column.kind == Column::Kind::kBubble    ? '.'
             : column.kind == Column::Kind::kExposed ? '~'
             : column.activity == Activity::kForward ? 'F'
                                                     : 'U';
  }
  EXPECT_EQ(kinds, "FFU~.");
  EXPECT_TRUE(Rasterize(row, 10, 0).empty());
  EXPECT_EQ(Rasterize(row, 0, 3).size(), 3u) << "a step without time";
}

TEST(Rasterize, ShortPassesComeInTheProportionOfTheirTimes) {
  StageRow row;
  for (int pass = 0; pass < 1000; ++pass) {  // a quarter forward, three quarters backward
    row.passes.push_back({Activity::kForward, 0, pass, 1.0 * pass, pass + 1.0});
    row.pieces.push_back({Activity::kForward, pass, 1.0 * pass, pass + 0.25});
    row.pieces.push_back({Activity::kBackward, pass, pass + 0.25, pass + 1.0});
  }
  int forward = 0;
  for (const Column& column : Rasterize(row, 1000, 40)) {
    ASSERT_EQ(column.kind, Column::Kind::kBusy);
    if (column.activity == Activity::kForward) ++forward;
  }
  EXPECT_NEAR(forward, 10, 1);
}

TEST(Sample, IsSpreadEvenlyFromFirstToLast) {
  EXPECT_EQ(Sample(3, 16), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(Sample(10, 4), (std::vector<int>{0, 3, 6, 9}));
  EXPECT_EQ(Sample(7, 1), (std::vector<int>{0}));
  EXPECT_TRUE(Sample(0, 4).empty());
}

TEST(TextChart, SmallPlansAreAsTheyShouldBe) {
  std::string text;
  for (const auto& [name, plan] :
       {std::make_pair("two stages", TwoStagePlan()), std::make_pair("V", VShapePlan()),
        std::make_pair("one rank", OneRankPlan())}) {
    const Step step = StepOf(plan);
    absl::StrAppend(&text, name, "\n", TextChart(step.chart, {.width = 80}), "\n");
  }
  ExpectGolden("plan_views.txt", text);
}

TEST(TextChart, NoLineIsWiderThanTheTerminal) {
  const Step step = StepOf(VShapePlan());
  for (int width : {60, 80, 100, 101, 237}) {
    for (const std::string& line : Lines(TextChart(step.chart, {.width = width}))) {
      if (line.rfind("stage", 0) != 0) continue;
      EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
    }
  }
  EXPECT_THAT(TextChart(step.chart, {.width = -5}), HasSubstr("stage 0"));
}

TEST(TextChart, ColoursChangeNoCharacter) {
  const Step step = StepOf(VShapePlan());
  const std::string plain = TextChart(step.chart, {.width = 90});
  const std::string colored = TextChart(step.chart, {.width = 90, .color = true});
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(colored, HasSubstr("\x1b[0;38;5;16;48;5;75mF"));
  EXPECT_EQ(WithoutColors(colored), plain);
}

TEST(TextChart, ManyStagesAreSampledAndSaidSo) {
  const std::string text = TextChart(LargeChart(64, 512), {.width = 100});
  EXPECT_EQ(Lines(text).size(), 1u + 16 + 2 + 1);
  EXPECT_THAT(text, HasSubstr("16 of 64 stages are shown"));
  EXPECT_THAT(text, HasSubstr("stage 63 FFFF")) << "numbers have no room";
}

TEST(TextChart, NothingToShow) {
  EXPECT_EQ(TextChart({}, {}), "");
  EXPECT_EQ(MemoryBars(TwoStagePlan(), {}, {}).find("stage 0"), 0u);
}

TEST(MemoryBars, PartsBudgetAndFigures) {
  const Step step = StepOf(TwoStagePlan());  // ranks 0-3, of stages 0 1 0 1
  const std::vector<int64_t> budgets(4, int64_t{64} << 20);
  ExpectGolden("memory_bars.txt", absl::StrCat(MemoryBars(step.plan, budgets, {.width = 100}), "\n",
                                               MemoryBars(step.plan, {}, {.width = 60})));
  const std::string colored = MemoryBars(step.plan, budgets, {.width = 100, .color = true});
  EXPECT_EQ(WithoutColors(colored), MemoryBars(step.plan, budgets, {.width = 100}));
}

TEST(MemoryByStage, IsOfTheReplicaWithTheLeastRoom) {
  const Step step = StepOf(TwoStagePlan());
  EXPECT_EQ(MemoryByStage(step.plan, {})[0].rank, 0);
  const std::vector<int64_t> tight_last = {90 << 20, 90 << 20, 10 << 20, 90 << 20};
  EXPECT_EQ(MemoryByStage(step.plan, tight_last)[0].rank, 2);
  EXPECT_EQ(MemoryByStage(step.plan, tight_last)[1].rank, 1);
}

TEST(SvgChart, IsAsItShouldBe) {
  const Step step = StepOf(VShapePlan());
  const std::string svg =
      SvgChart({.title = "a <b> & \"c\"\x01", .subtitle = "2 stages"}, step.plan, step.chart,
               std::vector<int64_t>(4, int64_t{64} << 20));
  ExpectXml(svg);
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot; "));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(svg, Not(HasSubstr("http://fonts")));
  ExpectGolden("plan_views.svg", svg);
}

TEST(SvgChart, ALargeStepStaysSmall) {
  Plan plan;
  plan.layout.stages = 64;
  const std::string svg = SvgChart({}, plan, LargeChart(64, 512), {});
  ExpectXml(svg);
  EXPECT_LT(svg.size(), 200'000u);
  const std::string sampled = SvgChart({}, plan, LargeChart(200, 4), {});
  EXPECT_THAT(sampled, HasSubstr("64 of 200 stages are shown"));
}

TEST(ChromeTrace, EveryInstructionIsAnEventAndArrowsLeadFromSendsToReceives) {
  for (Plan plan : {TwoStagePlan(), VShapePlan(), OneRankPlan()}) {
    const Step step = StepOf(std::move(plan));
    const auto trace = nlohmann::json::parse(ChromeTrace(step.plan, step.execution));
    std::map<int, nlohmann::json> sends;
    std::map<int, nlohmann::json> receives;
    size_t events = 0;
    for (const auto& event : trace.at("traceEvents")) {
      const std::string phase = event.at("ph");
      if (phase == "X") ++events;
      if (phase != "s" && phase != "f") continue;
      auto& arrows = phase == "s" ? sends : receives;
      EXPECT_TRUE(arrows.emplace(event.at("id"), event).second);
    }
    size_t instructions = 0;
    size_t exchanges = 0;
    for (const Program& program : step.plan.train) {
      for (const Instruction& instruction : program.instructions) {
        if (instruction.op != Op::kRelease) ++instructions;
        if (IsSend(instruction.op)) ++exchanges;
      }
    }
    EXPECT_EQ(events, instructions);
    EXPECT_EQ(sends.size(), exchanges);
    ASSERT_EQ(receives.size(), exchanges);
    for (const auto& [id, send] : sends) {
      EXPECT_NE(send.at("pid"), receives.at(id).at("pid"));
      EXPECT_LE(send.at("ts"), receives.at(id).at("ts"));
    }
  }
}

TEST(ChromeTrace, AnEventHasItsUnitMicroBatchAndSlots) {
  const Step step = StepOf(TwoStagePlan());
  const std::string trace = ChromeTrace(step.plan, step.execution);
  EXPECT_THAT(trace, HasSubstr(R"("name":"stage 1")"));
  EXPECT_THAT(trace,
              HasSubstr(R"("ph":"X","pid":0,"tid":0,"ts":0.000,"dur":1000000.000,"name":"0F0",)"
                        R"("cat":"F","args":{"unit":0,"micro_batch":0,)"));
}

TEST(ComparisonTable, ARowASchedule) {
  const std::vector<ComparedSchedule> schedules = {
      {.name = "gpipe",
       .refusal = "",
       .step_seconds = 3,
       .bubble_ratio = 0.25,
       .peak_bytes = 3 << 20,
       .peak_stage = 1,
       .held_micro_batches = 8},
      {.name = "1f1b",
       .refusal = "",
       .step_seconds = 2,
       .bubble_ratio = 0.125,
       .exposed_communication_ratio = 0.0625,
       .peak_bytes = 2 << 20,
       .held_micro_batches = 2.5},
      {.name = "zb_v", .refusal = "two chunks\nare needed\n\na picture\n"}};
  EXPECT_EQ(ComparisonTable(schedules),
            "SCHEDULE  STEP   OF BEST  BUBBLE  EXPOSED  PEAK MEMORY  OF BEST  STAGE  HELD\n"
            "gpipe     3.0 s  1.50x    25.0%   0.0%     3.0 MiB      1.50x    1      8.0\n"
            "1f1b      2.0 s  1.00x    12.5%   6.2%     2.0 MiB      1.00x    0      2.5\n"
            "zb_v      -      -        -       -        -            -        -      -     cannot "
            "run: two chunks: are needed\n"
            "EXPOSED: waits for GATHER, REDUCE or TIE_PARAM. HELD: micro-batches whose activations "
            "the fullest stage holds at once.\n");
}

TEST(WaitsText, NamesTheLargestFirstAndLeavesOutWhatIsNothing) {
  Simulation simulation;
  simulation.execution.makespan = 10;
  simulation.utilization = 0.75;
  EXPECT_EQ(WaitsText(simulation), "utilization 75.0 %");
  simulation.time_uses.resize(2);
  const auto wait = [&](size_t rank, Op op, double seconds) {
    simulation.time_uses[rank].waited[static_cast<size_t>(op)] = seconds;
  };
  wait(0, Op::kRecvAct, 1);
  wait(0, Op::kNorm, 2);
  wait(1, Op::kNorm, 1);
  wait(1, Op::kGather, 0.5);
  wait(1, Op::kRecvGrad, 0.001);
  EXPECT_EQ(WaitsText(simulation),
            "utilization 75.0 %; waits for other stages: NORM 15.0 %, RECV_ACT 5.0 %; "
            "communication that is not hidden: GATHER 2.5 %");
}

}  // namespace
}  // namespace esteira
