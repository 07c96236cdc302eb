#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/plan/plan.h"
#include "common/plan/validate.h"
#include "tests/common/plan/test_plans.h"

namespace esteira {
namespace {

constexpr char kOneStage[] =
    "esteira plan 1\n"
    "model architecture=gpt2 num_layers=1 hidden_size=8 num_heads=2 num_kv_heads=2 "
    "intermediate_size=16 vocab_size=32 "
    "max_sequence_length=4 tie_embeddings=0 norm_epsilon=1e-05 rope_theta=10000\n"
    "layout stages=1 chunks_per_stage=1 replicas=1 zero=0 "
    "global_batch_size=1 micro_batch_size=1 sequence_length=4 numerics=fast gradient_traffic=full "
    "boundaries=0,3 policies=0/1/none/1 "
    "workers=0\n"
    "schedule name=1f1b\n"
    "precision name=bf16\n"
    "prediction step_seconds=0.1 bubble_ratio=0 exposed_communication_ratio=0.25\n"
    "op_seconds F=0.5 B=0 I=0 W=0 R=0 SEND_ACT=0 RECV_ACT=0 SEND_GRAD=0 RECV_GRAD=0 GATHER=0 "
    "RELEASE=0 CLEAR=0 REDUCE=0 TIE_GRAD=0 NORM=0 STEP=0 TIE_PARAM=0\n"
    "memory parameters=1 gradients=2 optimizer=3 slots=4 workspace=5\n"
    "train\n"
    "stage 0\n"
    "units 0,1,2\n"
    "slots activation=2*64 gradient=2*64 saved=1*8192,1*4096 parameters= window=\n"
    "0F0 y0\n1F0 x0 y1 s0\n2F0 x1 s1\n0CLEAR\n1CLEAR\n2CLEAR\n"
    "2B0 x1 dx0 s1\n1B0 x0 dx1 dy0 s0\n0B0 dy1\n"
    "0REDUCE\n1REDUCE\n2REDUCE\nNORM\n0STEP\n1STEP\n2STEP\n"
    "evaluate\n"
    "stage 0\n"
    "units 0,1,2\n"
    "slots activation=2*64 gradient=2*64 saved=1*8192,1*4096 parameters= window=\n"
    "0F0 y0\n1F0 x0 y1 s0\n2F0 x1 s0\nNORM\n";

TEST(PlanTextTest, ReadsAndPrintsTheSame) {
  const absl::StatusOr<Plan> plan = ParsePlan(kOneStage);
  ASSERT_EQ(plan.status(), absl::OkStatus());
  EXPECT_EQ(PrintPlan(*plan), kOneStage);
  EXPECT_EQ(Validate(*plan), absl::OkStatus());
  EXPECT_EQ(plan->train[0].instructions.size(), 16u);
  EXPECT_EQ(plan->prediction.memory[0].total(), 15);
  EXPECT_EQ(plan->precision, Precision::kBf16);
}

TEST(PlanTextTest, RoundTrip) {
  for (Plan plan : {TwoStagePlan(), OneRankPlan(), VShapePlan(), Plan()}) {
    plan.prediction.step_seconds = 1.0 / 3;
    plan.prediction.bubble_ratio = 5e-324;
    plan.prediction.op_seconds[3] = 0.1;
    plan.layout.policies.back() = {3, kAll, true, 2};
    plan.prediction.memory = {{1, 2, 3, 4, int64_t{1} << 62}, {}};
    plan.layout.schedule = "csv:/a folder/with \"quotes\" and\nlines \xff";
    plan.model.architecture = Architecture::kLlama;
    plan.model.rope_theta = 500000.1;
    const absl::StatusOr<Plan> read = ParsePlan(PrintPlan(plan));
    ASSERT_EQ(read.status(), absl::OkStatus()) << PrintPlan(plan);
    EXPECT_EQ(*read, plan);
  }
}

TEST(PlanTextTest, DigestLeavesOutThePredictionAlone) {
  const Plan plan = TwoStagePlan();
  EXPECT_EQ(PlanDigest(plan).size(), 64u);
  Plan other = plan;
  other.prediction.step_seconds = 1;
  other.prediction.memory.resize(3);
  EXPECT_EQ(PlanDigest(other), PlanDigest(plan));
  other.evaluate[1].instructions[1].saved = 7;
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
  other = plan;
  other.layout.schedule = "gpipe";
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
  other = plan;
  other.train[0].slots[1][0].bytes += 1;
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
}

TEST(PlanTextTest, ErrorsNameTheLine) {
  const std::tuple<const char*, const char*, const char*> damages[] = {
      {"plan 1", "plan 2", "line 1: expected \"esteira plan 1\""},
      {"architecture=gpt2", "architecture=gpt9", "line 2: "},
      {"num_heads=2", "heads=2", "line 2: expected num_heads=, found \"heads=2\""},
      {"num_heads=2", "num_heads=two", "line 2: \"two\" is not a number"},
      {"tie_embeddings=0", "tie_embeddings=2", "line 2: tie_embeddings is neither 0 nor 1"},
      {"norm_epsilon=1e-05", "norm_epsilon=nan", "line 2: \"nan\" is not a finite number"},
      {" zero=0", "", "line 3: expected \"layout\" with stages=, "},
      {"zero=0", "zero=99999999999", "line 3: \"99999999999\" is not a number in its range"},
      {"boundaries=0,3", "boundaries=0,,3", "line 3: \"\" is not a number"},
      {"0/1/none/1", "0/1/some/1", "line 3: a policy is not "},
      {"0/1/none/1", "0/1/none", "line 3: a policy is not "},
      {"0/1/none/1", "0/x/none/1", "line 3: \"x\" is not a number"},
      {"F=0.5 B=0", "F=0.5", "line 7: expected \"op_seconds\" with F=, "},
      {"schedule name", "schedule", "line 4: expected \"schedule name=\""},
      {"name=1f1b", "name=\\q", "line 4: "},
      {"bf16", "fp64", "line 5: "},
      {"gradients=2 ", "", "line 8: expected \"memory\" with parameters=, "},
      {"train\n", "", "line 9: expected \"train\""},
      {"stage 0\n", "stage 0 0\n", "line 10: expected \"stage S\""},
      {"units 0,1,2", "unit 0", "line 11: expected \"units \""},
      {"slots activation=2*64", "slots activation=2x64", "line 12: \"2x64\" has no \"*\""},
      {"1F0 x0 y1 s0", "1F0 x0 y1 q0", "line 14: instruction \"1F0 x0 y1 q0\": expected slots"},
      {"2STEP\n", "2STEP\n\n", "line 29: instruction \"\": no such op"},
      {"2F0 x1 s0\nNORM\n", "2F0 x1 s0\nNORM", "the last line is cut off"},
      {"evaluate\n", "evaluate\ntrain\n", "line 30: expected \"stage S\" or the end"},
  };
  for (const auto& [from, to, what] : damages) {
    std::string text = kOneStage;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, std::string(from).size(), to);
    const absl::Status status = ParsePlan(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << from;
    EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
  }
}

// What any bytes must do: be refused with a reason, or be a plan that prints and reads back as
// itself, and which Validate judges without harm.
void CheckAnyBytes(absl::string_view bytes) {
  const absl::StatusOr<Instruction> instruction = ParseInstruction(bytes);
  if (instruction.ok()) {
    EXPECT_EQ(*ParseInstruction(ToText(*instruction)), *instruction);
  } else {
    EXPECT_FALSE(instruction.status().message().empty());
  }
  const absl::StatusOr<Plan> plan = ParsePlan(bytes);
  if (!plan.ok()) {
    EXPECT_NE(plan.status().message().find("plan text, line "), absl::string_view::npos)
        << plan.status();
    return;
  }
  const absl::StatusOr<Plan> again = ParsePlan(PrintPlan(*plan));
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(*again, *plan);
  for (const Phase phase : {Phase::kGenerated, Phase::kPointToPoint, Phase::kZero, kLowered}) {
    const absl::Status status = Validate(*plan, phase);
    if (status.ok()) continue;
    EXPECT_NE(status.message().find(": "), absl::string_view::npos);
  }
}

TEST(PlanTextFuzzTest, TruncatedAtEveryByte) {
  const std::string text = kOneStage;
  for (size_t length = 0; length < text.size(); ++length) {
    const absl::string_view start = absl::string_view(text).substr(0, length);
    CheckAnyBytes(start);
    // Between two lines the text may be a plan, but never a whole one.
    const absl::StatusOr<Plan> plan = ParsePlan(start);
    EXPECT_FALSE(plan.ok() && Validate(*plan).ok()) << length;
  }
}

TEST(PlanTextFuzzTest, EveryByteReplaced) {
  for (size_t at = 0; at + 1 < sizeof(kOneStage); ++at) {
    for (const char byte : {'0', '9', '-', ' ', '\n', ',', 'F', '\0', '\xff'}) {
      std::string text = kOneStage;
      text[at] = byte;
      CheckAnyBytes(text);
    }
  }
}

// A digit more or a digit less is what makes numbers large, negative or out of range.
TEST(PlanTextFuzzTest, EveryNumberDamaged) {
  for (const Plan& plan : {TwoStagePlan(), VShapePlan()}) {
    const std::string text = PrintPlan(plan);
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] < '0' || text[at] > '9') continue;
      for (const char* digits : {"", "-1", "7", "2147483647", "9223372036854775807"}) {
        CheckAnyBytes(absl::StrCat(text.substr(0, at), digits, text.substr(at + 1)));
      }
    }
  }
}

TEST(PlanTextFuzzTest, LinesShuffled) {
  std::mt19937 random(3);
  const std::string text = kOneStage;
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin) + 1;
    lines.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> damaged = lines;
    for (int swaps = 0; swaps < 1 + round % 3; ++swaps) {
      std::swap(damaged[random() % damaged.size()], damaged[random() % damaged.size()]);
    }
    if (round % 2 == 0)
      damaged.erase(damaged.begin() + static_cast<ptrdiff_t>(random() % damaged.size()));
    std::string joined;
    for (const std::string& line : damaged) joined += line;
    CheckAnyBytes(joined);
  }
}

TEST(PlanTextFuzzTest, RandomBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes(random() % 60, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    CheckAnyBytes(bytes);
    CheckAnyBytes(
        absl::StrCat(absl::string_view(kOneStage).substr(0, random() % sizeof(kOneStage)), bytes));
  }
}

}  // namespace
}  // namespace esteira
