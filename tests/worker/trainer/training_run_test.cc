#include "worker/trainer/training_run.h"

#include <sys/socket.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSteps = 12;
constexpr int kPassesOfStep = 4;  // 7 samples in micro-batches of 2

// What layer 1 does in its forward pass number `pass`: kNothing, a NaN in its output, or another
// number in its weights, which lasts until they are updated.
enum class Fault { kNothing, kNan, kWeight };
using FaultOfPass = std::function<Fault(int pass)>;

class Faulty : public UnitCompute {
 public:
  Faulty(std::unique_ptr<UnitCompute> unit, FaultOfPass faults)
      : unit_(std::move(unit)), faults_(std::move(faults)) {}

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override {
    const Fault fault = faults_(passes_++);
    if (fault == Fault::kWeight) Set(arguments.parameters, 0.5f, stream);
    unit_->Forward(arguments, kernels, stream);
    if (fault == Fault::kNan) Set(arguments.y.data, std::nanf(""), stream);
  }
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override {
    unit_->BackwardInput(arguments, kernels, stream);
  }
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override {
    unit_->BackwardWeight(arguments, kernels, stream);
  }

 private:
  static void Set(std::byte* to, float value, Stream& stream) {
    stream.Enqueue([to, value] {
      *reinterpret_cast<float*>(to) = value;
      return absl::OkStatus();
    });
  }

  std::unique_ptr<UnitCompute> unit_;
  FaultOfPass faults_;
  mutable int passes_ = 0;
};

class SilentSink : public LogSink {
 public:
  void Write(LogLevel, absl::string_view) override {}
};

struct Outcome {
  absl::Status status;
  std::vector<int64_t> steps;    // as they were reported
  std::vector<int64_t> skipped;  // of them
  std::vector<std::string> hashes;
  std::vector<double> learning_rates;
  std::vector<std::pair<std::string, std::string>> notices;  // reason, message
};

// A job of one rank in a folder of its own.
class TrainingRunTest : public ::testing::Test {
 protected:
  TrainingRunTest() {
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 200; ++i) text << "line " << i * i % 37 << " ";
  }
  ~TrainingRunTest() override { std::filesystem::remove_all(folder_); }

  JobSpec Job(OnNonFinite policy) const {
    JobSpec job = ToyJob(Architecture::kGpt2);
    job.model.vocab_size = 256;
    job.steps = kSteps;
    job.on_non_finite = policy;
    job.parameter_hash_every_steps = 1;
    job.train = {{(folder_ / "text.txt").string(), 1}};
    job.checkpoint_directory = (folder_ / "checkpoints").string();
    job.checkpoint_every_steps = 5;
    job.resume_if_found = policy == OnNonFinite::kRollBack;
    return job;
  }

  // Without checkpoints of an earlier run.
  Outcome Train(const JobSpec& job, const FaultOfPass& faults) const {
    std::filesystem::remove_all(job.checkpoint_directory);
    return GoOn(job, faults);
  }

  Outcome GoOn(const JobSpec& job, const FaultOfPass& faults) const {
    std::filesystem::create_directories(job.checkpoint_directory);
    esteira::Setup setup;
    setup.job = job;
    setup.plan = *PlanOf(job);
    setup.job_id = "job";
    setup.operation_timeout = absl::Minutes(1);
    setup.compute = *MakeCompute({});
    setup.compute.make_unit = [faults](const ModelSpec& model, const UnitSpec& unit,
                                       Precision precision) {
      std::unique_ptr<UnitCompute> made = MakeUnitCompute(model, unit, precision);
      if (unit.layer != 1) return made;
      return std::unique_ptr<UnitCompute>(std::make_unique<Faulty>(std::move(made), faults));
    };
    RealFileSystem files;
    setup.train = *DataSet::Open(job.train, job, true);
    setup.train_identity = *IdentifyData(files, job.train);
    return Collect(setup);
  }

 private:
  static Outcome Collect(esteira::Setup& setup) {
    std::array<int, 2> ends{};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    auto ours = std::make_unique<Channel>(ends[0]);
    Channel theirs(ends[1]);
    Outcome outcome;
    std::thread reader([&] {
      v1::TrainerReport report;
      while (theirs.Read(report).ok()) Add(report, outcome);
    });
    const auto transports = MakeInprocTransports(1);
    SilentSink sink;
    outcome.status = TrainingRun(*ours, setup, *transports[0], Logger(sink)).Run();
    ours.reset();
    reader.join();
    return outcome;
  }

  static void Add(const v1::TrainerReport& report, Outcome& outcome) {
    if (report.has_step()) {
      const int64_t step = report.step().record().step();
      outcome.steps.push_back(step);
      if (report.step().record().skipped()) outcome.skipped.push_back(step);
      outcome.hashes.push_back(std::to_string(report.step().parameter_hash_part()));
      outcome.learning_rates.push_back(report.step().record().learning_rate());
    }
    if (report.has_notice()) {
      outcome.notices.emplace_back(report.notice().reason(), report.notice().message());
    }
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("training_run_" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

Fault None(int) { return Fault::kNothing; }

// `count` whole steps from the one after `after` steps give a NaN.
FaultOfPass BadSteps(int after, int count) {
  return [=](int pass) {
    const bool bad = pass >= after * kPassesOfStep && pass < (after + count) * kPassesOfStep;
    return bad ? Fault::kNan : Fault::kNothing;
  };
}

TEST_F(TrainingRunTest, ASoundRunHasNothingToSay) {
  const Outcome outcome = Train(Job(OnNonFinite::kRollBack), None);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.steps.size(), kSteps);
  EXPECT_THAT(outcome.skipped, IsEmpty());
  EXPECT_THAT(outcome.notices, IsEmpty());
}

TEST_F(TrainingRunTest, ABadStepIsSkippedAndTheRunGoesOn) {
  const Outcome outcome = Train(Job(OnNonFinite::kSkip), BadSteps(7, 2));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.steps.size(), kSteps);
  EXPECT_THAT(outcome.skipped, ElementsAre(8));
  ASSERT_THAT(outcome.notices, SizeIs(1));
  EXPECT_EQ(outcome.notices[0].first, "BAD_STEP");
}

TEST_F(TrainingRunTest, OfSeveralBadStepsTheFirstIsAnEvent) {
  const Outcome outcome = Train(Job(OnNonFinite::kSkip), BadSteps(7, 6));
  EXPECT_THAT(outcome.skipped, ElementsAre(8, 9, 10));
  EXPECT_THAT(outcome.notices, SizeIs(1));
}

TEST_F(TrainingRunTest, StopEndsTheRunAtTheBadStep) {
  const Outcome outcome = Train(Job(OnNonFinite::kStop), BadSteps(7, 2));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(outcome.steps.back(), 8);
}

// Bad twice, then good: as if nothing had happened.
TEST_F(TrainingRunTest, RollBackGoesToTheLastCheckpointAndTriesAgain) {
  const Outcome sound = Train(Job(OnNonFinite::kRollBack), None);
  const Outcome outcome = Train(Job(OnNonFinite::kRollBack), BadSteps(7, 2));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(outcome.skipped, IsEmpty());
  EXPECT_EQ(outcome.hashes.back(), sound.hashes.back());
  ASSERT_THAT(outcome.notices, SizeIs(2));
  EXPECT_EQ(outcome.notices[1].first, "ROLLED_BACK");
  EXPECT_THAT(outcome.notices[1].second, HasSubstr("step 8 was bad: rolled back to step 5"));
}

TEST_F(TrainingRunTest, BeforeTheFirstCheckpointRollBackGoesToTheInitialWeights) {
  const Outcome sound = Train(Job(OnNonFinite::kRollBack), None);
  const Outcome outcome = Train(Job(OnNonFinite::kRollBack), BadSteps(2, 2));
  EXPECT_THAT(outcome.steps, ElementsAre(1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_EQ(outcome.hashes.back(), sound.hashes.back());
  EXPECT_THAT(outcome.notices[1].second, HasSubstr("rolled back to step 0, the initial weights"));
}

// Bad at every try: once rolled back, then skipped; and the steps after it, from the same state,
// are not tried again.
TEST_F(TrainingRunTest, WhatIsBadAgainIsSkipped) {
  const Outcome outcome = Train(Job(OnNonFinite::kRollBack), [](int pass) {
    // Steps 1 to 7, twice step 8, steps 6 and 7 again, and all that follows.
    const bool bad = pass >= 7 * kPassesOfStep && pass < 9 * kPassesOfStep;
    return bad || pass >= 11 * kPassesOfStep ? Fault::kNan : Fault::kNothing;
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(outcome.skipped, ElementsAre(8, 9, 10, 11, 12));
}

// A job that stops at a bad step and has made a checkpoint of step 5.
class ContinuedRunTest : public TrainingRunTest {
 protected:
  ContinuedRunTest() : job_(Job(OnNonFinite::kStop)), unbroken_(Train(job_, None)) {
    job_.resume_if_found = true;
    EXPECT_EQ(Train(job_, BadSteps(7, 2)).steps.back(), 8);
  }

  // Whether `outcome` is what the unbroken run did from `first` on.
  void ExpectUnbroken(const Outcome& outcome, int64_t first) const {
    const auto from = static_cast<ptrdiff_t>(first - 1);
    EXPECT_EQ(outcome.steps.front(), first);
    EXPECT_THAT(outcome.hashes,
                ElementsAreArray(unbroken_.hashes.begin() + from, unbroken_.hashes.end()));
    EXPECT_THAT(outcome.learning_rates, ElementsAreArray(unbroken_.learning_rates.begin() + from,
                                                         unbroken_.learning_rates.end()));
  }

  JobSpec Other() const {
    JobSpec job = job_;
    job.adamw = {0.5, 0.5, 0.5, 0.5, 0.5};
    job.schedule = {1, Decay::kLinear, 0.5, 0};
    job.dropout = 0.5;
    job.gradient_clip_norm = 1e-3;
    return job;
  }

  JobSpec job_;
  const Outcome unbroken_;
};

TEST_F(ContinuedRunTest, TheSavedHyperParametersHoldWhateverTheJobFileGives) {
  const Outcome outcome = GoOn(Other(), None);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  ExpectUnbroken(outcome, 6);
  ASSERT_THAT(outcome.notices, SizeIs(1));
  EXPECT_THAT(outcome.notices[0].second, HasSubstr("learning_rate stays 0.01 (the job file"));
}

// Stopped before its own first save, and after it.
TEST_F(ContinuedRunTest, ThatHoldsThroughRestarts) {
  EXPECT_EQ(GoOn(Other(), BadSteps(2, 2)).steps.back(), 8);
  EXPECT_EQ(GoOn(Other(), BadSteps(5, 2)).steps.back(), 11);
  ExpectUnbroken(GoOn(Other(), None), 11);
}

TEST_F(ContinuedRunTest, WhatIsSetHoldsThroughRestarts) {
  JobSpec job = Other();
  job.set_fields = {"training.optimizer.adamw.learning_rate"};
  job.checkpoint_directory += "-copy";
  std::filesystem::copy(job_.checkpoint_directory, job.checkpoint_directory,
                        std::filesystem::copy_options::recursive);
  const Outcome whole = GoOn(job, None);
  EXPECT_EQ(whole.steps.front(), 6);
  EXPECT_NE(whole.hashes[0], unbroken_.hashes[5]);
  EXPECT_NEAR(whole.learning_rates[0], unbroken_.learning_rates[5] * 0.5 / job_.adamw.learning_rate,
              1e-12);
  EXPECT_THAT(whole.notices[0].second, HasSubstr("learning_rate 0.01 -> 0.5 (--set)"));
  job.checkpoint_directory = job_.checkpoint_directory;
  EXPECT_EQ(GoOn(job, BadSteps(2, 2)).steps.back(), 8);
  EXPECT_EQ(GoOn(job, BadSteps(5, 2)).steps.back(), 11);
  EXPECT_EQ(GoOn(job, None).hashes.back(), whole.hashes.back());
}

TEST_F(ContinuedRunTest, MoreStepsGoOnAtTheLastRate) {
  JobSpec job = job_;
  job.steps = kSteps + 2;
  Outcome outcome = GoOn(job, None);
  ASSERT_EQ(outcome.steps.back(), kSteps + 2);
  for (int more = 0; more < 2; ++more) {
    EXPECT_EQ(outcome.learning_rates.back(), unbroken_.learning_rates.back());
    outcome.learning_rates.pop_back();
    outcome.hashes.pop_back();
  }
  ExpectUnbroken(outcome, 6);
}

TEST_F(TrainingRunTest, AStateThatWasDamagedIsFoundAfterRollBack) {
  const Outcome outcome = Train(Job(OnNonFinite::kRollBack), [](int pass) {
    if (pass == 6 * kPassesOfStep) return Fault::kWeight;  // step 7
    return BadSteps(7, 2)(pass);
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_THAT(outcome.notices, SizeIs(3));
  EXPECT_EQ(outcome.notices[2].first, "STATE_WAS_DAMAGED");
  EXPECT_THAT(outcome.notices[2].second, HasSubstr("step 7 came out otherwise than before"));
}

}  // namespace
}  // namespace esteira
