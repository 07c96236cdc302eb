#include "worker/launch_check/launch_check.h"

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/plan/validate.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/kernels/kernels.h"
#include "worker/launch_check/toy.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A model of full width: what the check must not compute with.
JobSpec WideJob(Architecture architecture, int stages, int replicas) {
  JobSpec job = ToyJob(architecture);
  job.model.num_layers = 6;
  job.model.hidden_size = 1024;
  job.model.num_heads = 16;
  job.model.num_kv_heads = architecture == Architecture::kLlama ? 4 : 16;
  job.model.intermediate_size = 4096;
  job.model.vocab_size = 50304;
  job.model.max_sequence_length = job.sequence_length = 1024;
  job.global_batch_size = 23;
  job.precision = Precision::kBf16;
  job.layout.stages = stages;
  job.layout.replicas = replicas;
  return job;
}

// Block `layer` of one rank counts a gradient twice, once.
class CountsTwice : public UnitCompute {
 public:
  CountsTwice(std::unique_ptr<UnitCompute> unit, int64_t elements, std::atomic<int>& times)
      : unit_(std::move(unit)), elements_(elements), times_(times) {}

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override {
    unit_->Forward(arguments, kernels, stream);
  }
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override {
    unit_->BackwardInput(arguments, kernels, stream);
  }
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override {
    unit_->BackwardWeight(arguments, kernels, stream);
    if (times_++ != 0) return;
    const Tensor gradients = {reinterpret_cast<std::byte*>(arguments.gradients), ElementType::kFp32,
                              elements_, 1};
    kernels.Add(gradients, gradients, gradients, stream);
  }

 private:
  std::unique_ptr<UnitCompute> unit_;
  int64_t elements_;
  std::atomic<int>& times_;
};

std::function<UnitFactory(int)> TwiceOn(int faulty_rank, int layer, std::atomic<int>& times) {
  return [=, &times](int rank) -> UnitFactory {
    return [=, &times](const ModelSpec& model, const UnitSpec& unit, Precision precision) {
      std::unique_ptr<UnitCompute> made = MakeUnitCompute(model, unit, precision);
      if (rank == faulty_rank && unit.kind == UnitKind::kBlock && unit.layer == layer) {
        made = std::make_unique<CountsTwice>(std::move(made), unit.flat_elements, times);
      }
      return made;
    };
  };
}

LaunchCheckOptions Faulty(std::function<UnitFactory(int)> units) {
  LaunchCheckOptions options;
  options.units = std::move(units);
  return options;
}

struct Case {
  int stages, replicas, zero;
  const char* schedule;
  int chunks = 1;
  int reduce_every = kAll;
  int gather_for = 1;
  const char* recompute = "none";
};

TEST(LaunchCheckTest, EveryLayoutThatIsRightPasses) {
  const Case cases[] = {
      {1, 1, 0, "gpipe"},         {4, 1, 0, "1f1b"},
      {2, 3, 1, "1f1b", 1, 2},    {2, 2, 3, "zb_h1", 1, 1, 2},
      {2, 2, 3, "zb_v", 2, kAll}, {3, 2, 2, "interleaved", 2, 1},
      {1, 5, 1, "gpipe"},         {2, 2, 3, "1f1b", 1, 1, kAll, "full"},
      {4, 2, 0, "dualpipe_v", 2}, {2, 1, 0, "v_half", 2},
  };
  for (Architecture architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    for (const Case& c : cases) {
      for (Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
        JobSpec job = WideJob(architecture, c.stages, c.replicas);
        job.numerics = numerics;
        job.dropout = 0.1;
        job.layout.zero = c.zero;
        job.layout.schedule = c.schedule;
        job.layout.chunks_per_stage = c.chunks;
        job.layout.reduce_every = c.reduce_every;
        job.layout.gather_for = c.gather_for;
        job.layout.recompute = c.recompute;
        const auto plan = PlanOf(job);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto report = CheckLaunch(job, *plan, {});
        ASSERT_TRUE(report.ok()) << LayoutText(job.layout) << ": " << report.status();
        EXPECT_EQ(report->ranks, c.stages * c.replicas);
        EXPECT_EQ(report->replicas_left_out, 0);
      }
    }
  }
}

TEST(LaunchCheckTest, AGradientThatCountsTwiceIsNamed) {
  for (Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    JobSpec job = WideJob(Architecture::kLlama, 2, 2);
    job.numerics = numerics;
    const auto plan = PlanOf(job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::atomic<int> times = 0;
    const absl::Status status =
        CheckLaunch(job, *plan, Faulty(TwiceOn(/*faulty_rank=*/3, /*layer=*/5, times))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    // The norm is of all parameters, and so is the clip: the first of the model differs.
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("model.embed_tokens.weight is the first parameter that differs"),
                      HasSubstr("after step 1"), HasSubstr("no step was made")));
  }
}

// One micro-batch of many, in fast numerics alone: the tolerance is not too wide.
TEST(LaunchCheckTest, FastNumericsFindOneMicroBatchOfManyThatCountsTwice) {
  JobSpec job = WideJob(Architecture::kGpt2, 2, 2);
  job.global_batch_size = 512;
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The exact run comes first, and passes; the fast one meets the fault.
  std::atomic<int> times = -256;
  const absl::Status status =
      CheckLaunch(job, *plan, Faulty(TwiceOn(/*faulty_rank=*/1, /*layer=*/5, times))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("in fast numerics"), HasSubstr("first parameter that differs")));
}

// Replicas that round their gradients are off by less than the tolerance, and one micro-batch of 12
// that counts twice by more.
TEST(LaunchCheckTest, Bf16GradientTrafficPassesAndFaultsAreFound) {
  for (Architecture architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    for (int replicas : {1, 3}) {
      for (int zero : {0, 1, 2, 3}) {
        JobSpec job = WideJob(architecture, 2, replicas);
        job.gradient_traffic = GradientTraffic::kBf16;
        job.layout.zero = zero;
        job.layout.reduce_every = zero % 2 == 0 ? kAll : 1;
        const auto plan = PlanOf(job);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto report = CheckLaunch(job, *plan, {});
        ASSERT_TRUE(report.ok()) << LayoutText(job.layout) << ": " << report.status();
      }
    }
  }
  JobSpec job = WideJob(Architecture::kGpt2, 2, 2);
  job.gradient_traffic = GradientTraffic::kBf16;
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::atomic<int> times = -12;  // past the exact run
  const absl::Status status =
      CheckLaunch(job, *plan, Faulty(TwiceOn(/*faulty_rank=*/1, /*layer=*/5, times))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in fast numerics"));
}

LaunchCheckOptions AtMost(int ranks) {
  LaunchCheckOptions options;
  options.most_ranks = ranks;
  return options;
}

TEST(LaunchCheckTest, ReplicasBeyondTheMostRanksAreLeftOut) {
  JobSpec job = WideJob(Architecture::kLlama, 2, 7);
  job.global_batch_size = 100;
  job.layout.zero = 3;
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto report = CheckLaunch(job, *plan, AtMost(6));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->ranks, 6);
  EXPECT_EQ(report->replicas_left_out, 4);
  const auto least = CheckLaunch(job, *plan, AtMost(1));
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_EQ(least->ranks, 4) << "two replicas are always kept: one alone reduces nothing";
}

TEST(LaunchCheckTest, ToysKeepTheProgramsAndAreNarrow) {
  JobSpec job = WideJob(Architecture::kGpt2, 2, 3);
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Toy toy = AtToyWidth(job, *plan, Numerics::kExact, Precision::kFp32, 100);
  EXPECT_TRUE(Validate(toy.plan).ok()) << Validate(toy.plan);
  EXPECT_EQ(toy.plan.train.size(), plan->train.size());
  EXPECT_EQ(toy.plan.layout.num_micro_batches(), plan->layout.num_micro_batches());
  for (size_t stage = 0; stage < plan->train.size(); ++stage) {
    EXPECT_EQ(toy.plan.train[stage].instructions, plan->train[stage].instructions);
    EXPECT_EQ(toy.plan.evaluate[stage].instructions, plan->evaluate[stage].instructions);
  }
  EXPECT_EQ(toy.plan.model.num_layers, plan->model.num_layers);
  EXPECT_LT(CountParameters(toy.plan.model), 20000);
}

TEST(LaunchCheckTest, APlanThatIsNotValidIsRefusedBeforeItRuns) {
  const JobSpec job = WideJob(Architecture::kGpt2, 2, 1);
  auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan->train[1].instructions.pop_back();
  const absl::Status status = CheckLaunch(job, *plan, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("launch check"));
}

}  // namespace
}  // namespace esteira
