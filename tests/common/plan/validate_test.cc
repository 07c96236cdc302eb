// Each check by name: a plan that breaks it, and nothing but it, as far as one check can be broken
// alone.
#include "common/plan/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "common/plan/validate/checks.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Names = std::set<std::string>;

// The names of all checks that fail, each run by itself.
Names FailingChecks(const Plan& plan, Phase phase) {
  Names names;
  const auto note = [&names](const absl::Status& status) {
    if (!status.ok())
      names.insert(std::string(status.message().substr(0, status.message().find(':'))));
  };
  note(validate::CheckStructure(plan, phase));
  if (!names.empty()) return names;
  const validate::Context context(plan, phase);
  for (const bool train : {true, false}) {
    const std::vector<Program>& programs = train ? plan.train : plan.evaluate;
    for (const Program& program : programs) {
      const validate::Subject subject{context, program, train,
                                      validate::Positions(context, program)};
      note(validate::CheckCoverage(subject));
      note(validate::CheckOrder(subject));
      if (phase >= Phase::kPointToPoint) note(validate::CheckPeers(subject));
      if (phase >= Phase::kPointToPoint) note(validate::CheckPairing(subject));
      if (phase >= Phase::kZero) note(validate::CheckGathered(subject));
      if (phase >= Phase::kZero) note(validate::CheckReduction(subject));
      if (phase >= Phase::kZero) note(validate::CheckJoins(subject));
      if (phase >= Phase::kSlots) note(validate::CheckSlots(subject));
    }
    if (phase >= Phase::kPointToPoint) note(validate::CheckDeadlock(context, programs, train));
  }
  return names;
}

// `plan` fails the check `name` alone, and the error says `what`.
void ExpectOnly(const Plan& plan, const std::string& name, const std::string& what,
                Phase phase = kLowered) {
  EXPECT_EQ(FailingChecks(plan, phase), Names{name});
  const absl::Status status = Validate(plan, phase);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith(name + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

// `plan` fails the check `name` first; others may fail for the same reason.
void ExpectFirst(const Plan& plan, const std::string& name, const std::string& what,
                 Phase phase = kLowered) {
  const absl::Status status = Validate(plan, phase);
  EXPECT_THAT(std::string(status.message()), StartsWith(name + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(ValidateTest, AcceptsGoodPlansInEveryPhase) {
  for (const Plan& plan : {TwoStagePlan(), OneRankPlan(), VShapePlan()}) {
    EXPECT_EQ(Validate(plan), absl::OkStatus());
    EXPECT_EQ(Validate(WithoutSlots(plan), Phase::kJoined), absl::OkStatus());
    EXPECT_EQ(Validate(WithoutSlots(plan), Phase::kOverlapped), absl::OkStatus());
    EXPECT_EQ(Validate(WithoutSlots(plan), Phase::kZero), absl::OkStatus());
    EXPECT_EQ(Validate(OnlyExchanges(plan), Phase::kPointToPoint), absl::OkStatus());
    EXPECT_EQ(Validate(OnlyCompute(plan), Phase::kPeers), absl::OkStatus());
    EXPECT_EQ(Validate(OnlyCompute(plan), Phase::kExpanded), absl::OkStatus());
  }
}

// Before units there are chunks: a plan with one unit a chunk reads the same in both phases,
// recomputation apart.
TEST(ValidateTest, AcceptsChunks) {
  Plan plan = OnlyCompute(OneRankPlan());
  plan.layout.policies[0].recompute = false;
  plan.layout.boundaries = {0, 1, 2, 3};
  plan.layout.chunks_per_stage = 3;
  for (const char* text : {"1R0", "1R1"}) Remove(plan, 0, text);
  EXPECT_EQ(Validate(plan, Phase::kGenerated), absl::OkStatus());
  Plan broken = plan;
  Remove(broken, 0, "1F1");
  ExpectOnly(broken, "coverage", "expected one F of chunk 1, micro-batch 1", Phase::kGenerated);
  broken = plan;
  MoveBefore(broken, 0, "0W1", "0W0");
  ExpectFirst(broken, "coverage", "0W1", Phase::kGenerated);
  broken = plan;
  MoveBefore(broken, 0, "1F0", "0F0");
  ExpectOnly(broken, "order", "(1F0): expected it after 0F0", Phase::kGenerated);
}

TEST(ValidateTest, RefusesWhatAPhaseDoesNotHaveYet) {
  const Plan plan = TwoStagePlan();
  ExpectOnly(plan, "structure", "no slot numbers yet", Phase::kOverlapped);
  ExpectOnly(WithoutSlots(plan), "structure", "an op that this program has in this phase",
             Phase::kPointToPoint);
  ExpectOnly(OnlyExchanges(plan), "structure", "(1SEND_ACT0>1)", Phase::kExpanded);
  ExpectOnly(OnlyCompute(OneRankPlan()), "structure", "train stage 0, instruction 1 (1F0)",
             Phase::kGenerated);
}

TEST(ValidateTest, Structure) {
  const std::pair<std::function<void(Plan&)>, const char*> faults[] = {
      {[](Plan& p) { p.model.num_heads = 0; }, "sizes of the model"},
      {[](Plan& p) { p.model.num_heads = 3; }, "the heads to divide"},
      {[](Plan& p) { p.layout.stages = 0; }, "stages, chunks and replicas from 1"},
      {[](Plan& p) { p.layout.zero = 4; }, "zero from 0 to 3, found 4"},
      {[](Plan& p) { p.layout.policies[1].reduce_every = -1; }, "reduce_every"},
      {[](Plan& p) { p.layout.policies[0].lookahead = -1; }, "lookahead"},
      {[](Plan& p) {
         p.layout.numerics = Numerics::kExact;
         p.layout.gradient_traffic = GradientTraffic::kBf16;
       },
       "gradient traffic in full where numerics are exact"},
      {[](Plan& p) { p.layout.policies.pop_back(); }, "a policy for each of 2 stages, found 1"},
      {[](Plan& p) {
         p.worker_of_rank = {0, 1, 2, 2};
       },
       "one worker for each of 4 ranks, each once, found 0,1,2,2"},
      {[](Plan& p) {
         p.worker_of_rank = {0, 1};
       },
       "one worker for each of 4 ranks"},
      {[](Plan& p) { p.layout.micro_batch_size = 0; }, "batch sizes"},
      {[](Plan& p) {
         p.layout.boundaries = {0, 3, 3};
       },
       "boundaries of 2 chunks ascending from 0 to 3, found 0,3,3"},
      {[](Plan& p) { p.layout.boundaries.clear(); }, "boundaries"},
      {[](Plan& p) { p.evaluate.pop_back(); }, "2 programs to train"},
      {[](Plan& p) {
         p.model.num_layers = 1 << 20, p.layout.boundaries = {0, 2, (1 << 20) + 2};
       },
       "units, found 3"},
      {[](Plan& p) { p.train[1].units = {1}; }, "unit 1 once"},
      {[](Plan& p) { p.train[1].units = {7}; }, "ascending units"},
      {[](Plan& p) {
         p.train[0].units = {1, 0};
       },
       "ascending units"},
      {[](Plan& p) {
         p.layout.boundaries = {0, 1, 3};
       },
       "chunk 1 on one stage"},
      {[](Plan& p) { p.train[1].stage = 0; }, "the program of stage 1"},
      {[](Plan& p) { p.evaluate[0].units = {0}; }, "the units that the stage holds in training"},
      {[](Plan& p) { p.train[0].instructions[0].unit = 2; },
       "a unit that this stage holds and computes"},
      {[](Plan& p) { p.train[0].instructions[0].unit = -1; },
       "a unit that this stage holds and computes"},
      {[](Plan& p) { p.train[0].instructions[0].micro_batch = 2; }, "a micro-batch of the replica"},
      {[](Plan& p) { p.train[0].instructions[0].peer = 1; }, "no peer"},
      {[](Plan& p) { p.train[0].instructions[0].op = static_cast<Op>(99); }, "known ops only"},
      {[](Plan& p) { p.train[0].instructions[2].peer = 0; }, "another stage as peer"},
      {[](Plan& p) { p.train[0].instructions[2].peer = 2; }, "another stage as peer"},
      {[](Plan& p) { Replace(p, 0, "0CLEAR", "2CLEAR"); }, "a unit that this stage holds"},
      {[](Plan& p) { Replace(p, 0, "0CLEAR", "0CLEAR0"); }, "no micro-batch"},
      {[](Plan& p) { Replace(p, 0, "NORM", "0NORM"); }, "no unit"},
      {[](Plan& p) { Replace(p, 0, "0STEP", "0TIE_GRAD"); }, "an end of the tied table"},
      {[](Plan& p) { p.evaluate[1].instructions[1].op = Op::kBackward; },
       "an op that this program has"},
  };
  for (const auto& [damage, what] : faults) {
    SCOPED_TRACE(what);
    Plan plan = TwoStagePlan();
    damage(plan);
    ExpectOnly(plan, "structure", what);
  }
}

TEST(ValidateTest, Coverage) {
  const std::pair<std::function<void(Plan&)>, const char*> faults[] = {
      {[](Plan& p) { Remove(p, 0, "1F1"); },
       "train stage 0: expected one F of unit 1, micro-batch 1"},
      {[](Plan& p) { Remove(p, 0, "1W1"); }, "one B, or one I and one W, of unit 1, micro-batch 1"},
      {[](Plan& p) { Remove(p, 0, "1I1"); }, "one B, or one I and one W, of unit 1, micro-batch 1"},
      {[](Plan& p) { Replace(p, 0, "0W1", "0B1"); },
       "one B, or one I and one W, of unit 0, micro-batch 1"},
      {[](Plan& p) { p.train[0].instructions.push_back(p.train[0].instructions[0]); },
       "(0F0): expected it only once"},
      {[](Plan& p) { Remove(p, 0, "1R0"); }, "one R of unit 1, micro-batch 0"},
      {[](Plan& p) { p.layout.policies[0].recompute = false; }, "no R of unit 1"},
      {[](Plan& p) { MoveBefore(p, 0, "1R0", "0F0"); }, "(1R0): expected it after 1F0"},
      {[](Plan& p) { MoveBefore(p, 0, "1I0", "1R0"); }, "(1I0): expected it after 1R0"},
      {[](Plan& p) { MoveBefore(p, 0, "2W0", "2I0"); }, "(2W0): expected it after 2I0"},
      {[](Plan& p) { MoveBefore(p, 0, "2I0", "2F0"); }, "(2I0): expected it after 2F0"},
      {[](Plan& p) { p.evaluate[0].instructions.pop_back(); },
       "evaluate stage 0: expected one F of unit 2"},
  };
  for (const auto& [damage, what] : faults) {
    SCOPED_TRACE(what);
    Plan plan = OnlyCompute(OneRankPlan());
    damage(plan);
    ExpectOnly(plan, "coverage", what, Phase::kExpanded);
  }
}

TEST(ValidateTest, Order) {
  Plan plan = OnlyCompute(OneRankPlan());
  MoveBefore(plan, 0, "0W0", "0W1");
  MoveBefore(plan, 0, "0W1", "0W0");
  ExpectOnly(plan, "order", "(0W1): expected it after 0W0", Phase::kExpanded);
  plan = OnlyCompute(OneRankPlan());
  MoveBefore(plan, 0, "2F0", "1F0");
  ExpectOnly(plan, "order", "(2F0): expected it after 1F0", Phase::kExpanded);
  plan = OnlyCompute(OneRankPlan());
  MoveBefore(plan, 0, "0I0", "1I0");
  ExpectOnly(plan, "order", "(0I0): expected it after 1I0", Phase::kExpanded);
  const std::pair<const char*, const char*> moves[] = {
      {"1SEND_ACT0", "1F0"}, {"1B0", "1RECV_GRAD0"}, {"2F0", "2RECV_ACT0"}, {"2SEND_GRAD0", "2B0"}};
  for (const auto& [moved, before] : moves) {
    SCOPED_TRACE(moved);
    plan = OnlyExchanges(TwoStagePlan());
    MoveBefore(plan, moved[0] == '1' ? 0 : 1, moved, before);
    ExpectFirst(plan, "order", "expected it after", Phase::kPointToPoint);
  }
}

// The first and the last of four stages exchange as neighbours do: everything pairs, but with the
// wrong stages.
TEST(ValidateTest, Peers) {
  Layout layout;
  layout.stages = 3;
  layout.SetPolicies({});
  layout.boundaries = {0, 1, 2, 3};
  layout.global_batch_size = layout.micro_batch_size = 1;
  layout.sequence_length = 4;
  Plan plan = OnlyExchanges(MakeHandMadePlan(
      TinyModel(1, false), layout,
      {{{0}, {"0F0", "0SEND_ACT0>2", "0RECV_GRAD0<1", "0B0"}, {"0F0", "0SEND_ACT0>1"}},
       {{1},
        {"1RECV_ACT0<0", "1F0", "1SEND_ACT0>2", "1RECV_GRAD0<2", "1B0", "1SEND_GRAD0>0"},
        {"1RECV_ACT0<0", "1F0", "1SEND_ACT0>2"}},
       {{2}, {"2RECV_ACT0<1", "2F0", "2B0", "2SEND_GRAD0>1"}, {"2RECV_ACT0<1", "2F0"}}}));
  ExpectFirst(plan, "peers",
              "train stage 0, instruction 1 (0SEND_ACT0>2): expected peer 1, which holds unit 1",
              Phase::kPointToPoint);
  plan = OnlyExchanges(TwoStagePlan());
  Replace(plan, 0, "1RECV_GRAD0", "0RECV_GRAD0");
  ExpectFirst(plan, "peers", "(0RECV_GRAD0<1): expected no exchange: unit 1 is on this stage",
              Phase::kPointToPoint);
  plan = OnlyExchanges(TwoStagePlan());
  Replace(plan, 1, "2SEND_GRAD0", "2SEND_ACT0");
  ExpectFirst(plan, "peers", "a unit with a neighbour on this side", Phase::kPointToPoint);
}

TEST(ValidateTest, TiePeers) {
  Plan plan = OneRankPlan();
  Replace(plan, 0, "4TIE_GRAD", "3TIE_GRAD");
  ExpectOnly(plan, "peers", "expected unit 4 without peer: both ends are here");
  plan = OneRankPlan();
  plan.train[0].instructions.push_back(ParseInstruction("4TIE_PARAM").value());
  ExpectFirst(plan, "peers", "no copy between ends on one stage");
}

TEST(ValidateTest, Pairing) {
  Plan plan = OnlyExchanges(TwoStagePlan());
  Remove(plan, 0, "1SEND_ACT1");
  Remove(plan, 1, "2RECV_ACT1");
  ExpectOnly(plan, "pairing",
             "train stage 0: expected one SEND_ACT of unit 1, micro-batch 1: stage 1 holds unit 2",
             Phase::kPointToPoint);
  plan = OnlyExchanges(TwoStagePlan());
  for (Program& program : plan.train) {
    const size_t at = Find(program, program.stage == 0 ? "1SEND_ACT1" : "2RECV_ACT1");
    program.instructions.push_back(program.instructions[at]);
  }
  ExpectOnly(plan, "pairing", "(1SEND_ACT1>1): expected it only once", Phase::kPointToPoint);
}

TEST(ValidateTest, Deadlock) {
  // The first stage wants the gradient of micro-batch 0 before it sends micro-batch 1; the last one
  // computes both first.
  Plan plan = OnlyExchanges(TwoStagePlan());
  for (const char* text : {"0F1", "1F1", "1SEND_ACT1"}) MoveBefore(plan, 0, text, "1RECV_GRAD1");
  EXPECT_EQ(Validate(plan, Phase::kPointToPoint), absl::OkStatus());
  for (const char* text : {"2B0", "2SEND_GRAD0"}) MoveBefore(plan, 1, text, "2B1");
  ExpectOnly(plan, "deadlock",
             "stage 1: instruction 2 (2RECV_ACT1<0) waits for stage 0 to reach 1SEND_ACT1>1",
             Phase::kPointToPoint);
  // The receiver takes them the other way round.
  plan = OnlyExchanges(TwoStagePlan());
  MoveBefore(plan, 1, "2RECV_ACT1", "2RECV_ACT0");
  ExpectOnly(plan, "deadlock", "to reach", Phase::kPointToPoint);
}

TEST(ValidateTest, Gathered) {
  Plan plan = TwoStagePlan();
  Remove(plan, 0, "1GATHER");
  ExpectOnly(plan, "gathered", "train stage 0: expected GATHER of unit 1 after its STEP");
  plan = TwoStagePlan();
  MoveBefore(plan, 0, "1GATHER", "NORM");
  ExpectOnly(plan, "gathered",
             "(1GATHER): expected no GATHER: the parameters are whole and up to date");
  plan = TwoStagePlan();
  Replace(plan, 0, "1GATHER", "1RELEASE");
  ExpectFirst(plan, "gathered", "no RELEASE: the rank keeps all parameters");
  plan = OneRankPlan();
  MoveBefore(plan, 0, "3GATHER p3", "0CLEAR w0");
  ExpectOnly(plan, "gathered", "(0F0 y0): expected GATHER of unit 3 before it is used");
  plan = WithoutSlots(OneRankPlan());
  MoveBefore(plan, 0, "3RELEASE", "2I0");  // the head reads the owner's end
  ExpectOnly(plan, "gathered", "(2I0): expected GATHER of unit 3 before it is used", Phase::kZero);
  plan = WithoutSlots(OneRankPlan());
  Replace(plan, 0, "3GATHER", "4GATHER");
  ExpectFirst(plan, "gathered", "the owner's parameters in use", Phase::kZero);
}

// Parameters that were gathered before STEP are not those after it.
TEST(ValidateTest, GatheredIsStaleAfterStep) {
  Plan plan = WithoutSlots(OneRankPlan());
  MoveBefore(plan, 0, "1STEP", "1F0");
  EXPECT_EQ(FailingChecks(plan, Phase::kZero), (Names{"gathered", "reduction"}));
  ExpectFirst(plan, "gathered",
              "(1F0): expected parameters of unit 1 gathered anew after their update",
              Phase::kZero);
  plan = TwoStagePlan();
  MoveBefore(plan, 0, "1STEP", "1F1 x2 y1 s1");
  ExpectFirst(plan, "gathered", "(1F1 x2 y1 s1): expected parameters of unit 1 gathered anew");
}

TEST(ValidateTest, Reduction) {
  const std::tuple<int, const char*, const char*, const char*> moves[] = {
      {0, "1REDUCE", "1B1 x2 dx1 dy0 s1", "it after 1 more backward passes of its window"},
      {0, "0STEP", "NORM", "NORM before STEP"},
      {0, "NORM", "0REDUCE", "(NORM): expected it after the last REDUCE of unit 0"},
      {1, "2REDUCE", "2CLEAR", "CLEAR before REDUCE"},
  };
  for (const auto& [stage, moved, before, what] : moves) {
    SCOPED_TRACE(moved);
    Plan plan = TwoStagePlan();
    MoveBefore(plan, stage, moved, before);
    ExpectOnly(plan, "reduction", what);
  }
}

TEST(ValidateTest, ReductionOfWindowsAndTies) {
  const std::pair<std::function<void(Plan&)>, const char*> faults[] = {
      {[](Plan& p) { Remove(p, 0, "1CLEAR"); }, "CLEAR of unit 1 before gradients are added"},
      {[](Plan& p) { Remove(p, 0, "1REDUCE"); }, "REDUCE of the window before the next CLEAR"},
      {[](Plan& p) { p.layout.policies[0].reduce_every = kAll; },
       "it after 1 more backward passes of its window"},
      {[](Plan& p) { Remove(p, 0, "4TIE_GRAD"); }, "it after TIE_GRAD of unit 3"},
      {[](Plan& p) { MoveBefore(p, 0, "NORM", "4TIE_GRAD"); },
       "(NORM): expected it after TIE_GRAD of unit 3"},
      {[](Plan& p) { MoveBefore(p, 0, "4TIE_GRAD", "0F1"); },
       "it after the last REDUCE of the tied table"},
      {[](Plan& p) { Remove(p, 0, "3STEP"); }, "one STEP of unit 3"},
      {[](Plan& p) { Replace(p, 0, "3STEP", "2STEP"); }, "(2STEP): expected it only once"},
      {[](Plan& p) { Replace(p, 0, "3STEP", "4STEP"); }, "no STEP: the other end owns the table"},
      {[](Plan& p) { p.train[0].instructions.push_back(ParseInstruction("1CLEAR").value()); },
       "only 2 windows"},
  };
  for (const auto& [damage, what] : faults) {
    SCOPED_TRACE(what);
    Plan plan = WithoutSlots(OneRankPlan());
    damage(plan);
    ExpectOnly(plan, "reduction", what, Phase::kZero);
  }
}

// The loss of an evaluation is what the forward passes before NORM found.
TEST(ValidateTest, NothingIsComputedAfterNorm) {
  Plan plan = OneRankPlan();
  std::vector<Instruction>& instructions = plan.evaluate[0].instructions;
  const size_t norm = Find(plan.evaluate[0], "NORM");
  std::swap(instructions[norm], instructions[norm - 1]);
  ExpectOnly(plan, "reduction",
             "evaluate stage 0, instruction 10 (2F1 x1 s0): expected it before NORM");
}

TEST(ValidateTest, OneNorm) {
  Plan plan = TwoStagePlan();
  for (Program& program : plan.train)
    program.instructions.push_back(ParseInstruction("NORM").value());
  ExpectOnly(plan, "reduction", "(NORM): expected it only once");
  plan = TwoStagePlan();
  for (Program& program : plan.evaluate) program.instructions.pop_back();
  ExpectOnly(plan, "reduction", "evaluate stage 0: expected one NORM");
}

TEST(ValidateTest, Joins) {
  const std::tuple<int, const char*, const char*> faults[] = {
      {0, "1GATHER", "(1GATHER +): expected GATHER next on its queue"},
      {0, "0REDUCE", "(0REDUCE +): expected REDUCE next on its queue"},
      {0, "1STEP", "(1STEP +): expected only REDUCE, and GATHER in place, joined"},
      {0, "NORM", "(NORM +): expected only REDUCE, and GATHER in place, joined"},
      {0, "1REDUCE", "(0REDUCE): expected at most 1024 elements joined, as of the largest unit"},
  };
  for (const auto& [stage, text, what] : faults) {
    SCOPED_TRACE(what);
    Plan plan = TwoStagePlan();
    Replace(plan, stage, text, std::string(text) + " +");
    ExpectOnly(plan, "joins", what);
  }
  Plan plan = OneRankPlan();
  Replace(plan, 0, "0GATHER p0", "0GATHER p0 +");
  ExpectOnly(plan, "joins", "(0GATHER p0 +): expected only REDUCE, and GATHER in place, joined");
}

TEST(ValidateTest, JoinsOfAPhase) {
  Plan plan = TwoStagePlan();
  Replace(plan, 0, "0GATHER", "0GATHER +");
  EXPECT_EQ(Validate(plan), absl::OkStatus());
  plan = WithoutSlots(plan);
  EXPECT_EQ(Validate(plan, Phase::kJoined), absl::OkStatus());
  ExpectOnly(plan, "joins", "(0GATHER +): expected it not joined in this phase",
             Phase::kOverlapped);
}

// The next window of a unit may not open before the group in whose midst it does has ended.
TEST(ValidateTest, NothingWaitsForAGroupInItsMidst) {
  Plan plan = OneRankPlan();
  MoveBefore(plan, 0, "2REDUCE w2", "0REDUCE w0");
  Replace(plan, 0, "2REDUCE w2", "2REDUCE w2 +");
  EXPECT_EQ(Validate(plan), absl::OkStatus());
  std::vector<Instruction>& all = plan.train[0].instructions;
  const auto closing = all.begin() + static_cast<ptrdiff_t>(Find(plan.train[0], "0REDUCE w0"));
  const Instruction clear = ParseInstruction("2CLEAR w2").value();
  const auto second = std::find(closing, all.end(), clear);
  std::rotate(closing, second, second + 1);
  ExpectOnly(plan, "joins",
             "(2CLEAR w2): expected it behind 0REDUCE w0, with which 2REDUCE w2 + ends");
}

TEST(ValidateTest, Slots) {
  const std::tuple<int, const char*, const char*, const char*> faults[] = {
      {0, "0F1 y2", "0F1 y0",
       "activation slot 0 to be free, found activation of unit 0, micro-batch 0"},
      {0, "0F1 y2", "0F1 y3", "activation slot below 3, found 3"},
      {0, "0F1 y2", "0F1", "activation slot below 3, found -1"},
      {0, "1F1 x2 y1 s1", "1F1 x0 y1 s1",
       "activation slot 0 to hold activation of unit 0, micro-batch 1"},
      {0, "1F1 x2 y1 s1", "1F1 x2 y1 s0", "saved slot 0 to be free"},
      {0, "1F1 x2 y1 s1", "1F1 x2 y1 dx0 s1", "no gradient slot 0"},
      {0, "1B0 x0 dx1 dy0 s0", "1B0 x0 dx0 dy0 s0", "gradient slot 0 to be free"},
      {0, "1B0 x0 dx1 dy0 s0", "1B0 x0 dx1 dy1 s0", "gradient slot 1 to hold gradient of unit 1"},
      {0, "1SEND_ACT0 y1", "1SEND_ACT0 y0", "to hold activation of unit 1, micro-batch 0"},
      {0, "1RECV_GRAD1 dy0", "1RECV_GRAD1 dy0 s0", "no saved slot 0"},
      {0, "0CLEAR", "0CLEAR w0", "no window slot 0"},
      {0, "0GATHER", "0GATHER p0", "no parameters slot 0"},
      {0, "NORM", "NORM x0", "no activation slot 0"},
  };
  for (const auto& [stage, text, replacement, what] : faults) {
    SCOPED_TRACE(replacement);
    Plan plan = TwoStagePlan();
    Replace(plan, stage, text, replacement);
    ExpectOnly(plan, "slots", what);
  }
}

TEST(ValidateTest, SlotsOfParametersAndWindows) {
  const std::tuple<const char*, const char*, const char*> faults[] = {
      {"1GATHER p1", "1GATHER p0", "parameters slot 0 to be free, found parameters of unit 0"},
      {"1RELEASE p1", "1RELEASE p2",
       "parameters slot 2 to hold parameters of unit 1, found parameters of unit 2"},
      {"1CLEAR w1", "1CLEAR w0", "window slot 0 to be free"},
      {"1CLEAR w1", "1CLEAR", "window slot below 5, found -1"},
      {"1REDUCE w1", "1REDUCE w3", "window slot 3 to hold window of unit 1"},
      {"1F0 x0 y1", "1F0 x0 y1 s0", "no saved slot 0"},
      {"1R0 x0 s0", "1R0 x0 s1", "saved slot 1 to be free"},
      {"1R0 x0 s0", "1R0 x1 s0", "activation slot 1 to hold activation of unit 0"},
  };
  for (const auto& [text, replacement, what] : faults) {
    SCOPED_TRACE(replacement);
    Plan plan = OneRankPlan();
    Replace(plan, 0, text, replacement);
    ExpectOnly(plan, "slots", what);
  }
}

TEST(ValidateTest, SlotClasses) {
  const auto changed = [](const std::function<void(Program&)>& change) {
    Plan plan = TwoStagePlan();
    change(plan.train[1]);
    plan.evaluate[1].slots = plan.train[1].slots;
    return plan;
  };
  ExpectOnly(changed([](Program& p) { --p.slots[0][0].bytes; }), "slots",
             "(2RECV_ACT0<0 x0): expected activation slot 0 of at least 128 bytes, found 127");
  ExpectOnly(changed([](Program& p) { p.slots[2][0].count = 1 << 30; }), "slots",
             "train stage 1: expected 0 to 18 saved slots in all, found 0 and then 1073741824");
  ExpectOnly(changed([](Program& p) {
               p.slots[2].push_back({1, -1});
             }),
             "slots", "found 1 and then -1 of 1 bytes");
  ExpectOnly(changed([](Program& p) { p.slots[2][0].bytes = -1; }), "slots", "of -1 bytes");
  Plan plan = TwoStagePlan();
  plan.evaluate[0].slots[2][0].count += 1;
  ExpectOnly(plan, "slots", "evaluate stage 0: expected the slots that the stage has in training");
}

// The second class begins where the first ends, and each slot must hold what is put into it.
TEST(ValidateTest, SlotsOfSeveralClasses) {
  Plan plan = OneRankPlan();
  std::vector<SlotClass>& windows = plan.train[0].slots[static_cast<size_t>(SlotKind::kWindow)];
  const int64_t bytes = windows[0].bytes;
  ASSERT_EQ(windows[0].count, 5);
  windows = {{bytes, 3}, {bytes, 2}};
  plan.evaluate[0].slots = plan.train[0].slots;
  EXPECT_EQ(Validate(plan), absl::OkStatus());
  plan.train[0].slots[static_cast<size_t>(SlotKind::kWindow)][1].bytes = 64;
  plan.evaluate[0].slots = plan.train[0].slots;
  ExpectOnly(plan, "slots", "(3CLEAR w3): expected window slot 3 of at least ");
}

// What nobody takes from its slot is left there.
TEST(ValidateTest, SlotsAreEmptyAtTheEnd) {
  Plan plan = OneRankPlan();
  std::erase_if(plan.evaluate[0].instructions,
                [](const Instruction& i) { return i.op == Op::kRelease; });
  EXPECT_EQ(FailingChecks(plan, kLowered), (Names{"gathered", "slots"}));
  plan = TwoStagePlan();
  std::erase_if(plan.train[0].instructions, [](const Instruction& i) { return IsSend(i.op); });
  const Names names = FailingChecks(plan, kLowered);
  EXPECT_TRUE(names.contains("slots"));
  EXPECT_TRUE(names.contains("pairing"));
}

}  // namespace
}  // namespace esteira
