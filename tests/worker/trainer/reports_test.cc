#include "worker/trainer/reports.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

class ReportsTest : public testing::Test {
 protected:
  StepReport Report() {
    StepReport report;
    report.step = 17;
    report.loss = 0.1;
    report.gradient_norm = -0.0;
    report.learning_rate = 3e-4;
    report.tokens = 1 << 20;
    report.valid_tokens = (1 << 20) - 1;
    report.step_seconds = 2;
    report.bubble_seconds = 0.5;
    report.exposed_shard_seconds = 0.25;
    return report;
  }
  v1::StepReportProto Encode(const StepReport& report) {
    return EncodeStep(report, 3, std::nullopt, *device_);
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
};

TEST_F(ReportsTest, AStepHasItsNumbersAndTheirBits) {
  const v1::StepRecord record = Encode(Report()).record();
  EXPECT_EQ(record.step(), 17);
  EXPECT_EQ(record.loss(), 0.1);
  EXPECT_EQ(record.loss_bits(), "3fb999999999999a");
  EXPECT_EQ(record.gradient_norm_bits(), "8000000000000000") << "the sign of zero is kept";
  EXPECT_EQ(record.learning_rate(), 3e-4);
  EXPECT_EQ(record.tokens(), 1 << 20);
  EXPECT_EQ(record.valid_tokens(), (1 << 20) - 1);
  EXPECT_EQ(record.step_seconds(), 2);
  EXPECT_EQ(record.bubble_ratio(), 0.25);
  EXPECT_EQ(record.exposed_communication_ratio(), 0.125);
  EXPECT_EQ(record.epoch(), 3);
  EXPECT_FALSE(record.skipped());
  EXPECT_EQ(record.skip_cause(), "");
  EXPECT_FALSE(record.has_validation_loss());
}

TEST_F(ReportsTest, AStepHasTheSecondsOfItsOps) {
  StepReport report = Report();
  report.op_seconds[static_cast<size_t>(Op::kForward)] = 0.5;
  report.op_seconds[static_cast<size_t>(Op::kTieParameter)] = 0.25;
  const v1::StepRecord record = Encode(report).record();
  EXPECT_EQ(record.op_seconds().size(), 2u);
  EXPECT_EQ(record.op_seconds().at("F"), 0.5);
  EXPECT_EQ(record.op_seconds().at("TIE_PARAM"), 0.25);
}

TEST_F(ReportsTest, AValidationLossOfZeroIsPresent) {
  const v1::StepRecord record = EncodeStep(Report(), 1, 0.0, *device_).record();
  EXPECT_TRUE(record.has_validation_loss());
  EXPECT_EQ(record.validation_loss(), 0);
}

TEST_F(ReportsTest, AStepThatTookNoTimeHasRatiosOfZero) {
  StepReport report = Report();
  report.step_seconds = report.bubble_seconds = report.exposed_shard_seconds = 0;
  EXPECT_EQ(Encode(report).record().bubble_ratio(), 0);
  EXPECT_EQ(Encode(report).record().exposed_communication_ratio(), 0);
}

TEST_F(ReportsTest, BitsOfWhatIsNotFiniteAreKept) {
  StepReport report = Report();
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.gradient_norm = std::numeric_limits<double>::infinity();
  const v1::StepRecord record = Encode(report).record();
  EXPECT_TRUE(std::isnan(record.loss()));
  EXPECT_EQ(record.loss_bits(), "7ff8000000000000");
  EXPECT_EQ(record.gradient_norm_bits(), "7ff0000000000000");
}

TEST_F(ReportsTest, ASkipNamesItsCause) {
  StepReport report = Report();
  report.skipped = true;
  EXPECT_EQ(Encode(report).record().skip_cause(), "no valid target in the global batch");
  report.non_finite = {.found = true, .rank = 2, .unit = 3, .micro_batch = 1};
  EXPECT_TRUE(Encode(report).record().skipped());
  EXPECT_EQ(Encode(report).record().skip_cause(),
            "non-finite value first at rank 2, unit 3, micro-batch 1");
  report.non_finite.micro_batch = 0;
  EXPECT_EQ(Encode(report).record().skip_cause(),
            "non-finite value first at rank 2, unit 3, micro-batch 0");
  report.non_finite.micro_batch = -1;
  EXPECT_EQ(Encode(report).record().skip_cause(),
            "non-finite value first at rank 2, unit 3, in the reduced gradient");
}

TEST_F(ReportsTest, AParameterHashOfZeroIsAHash) {
  EXPECT_FALSE(Encode(Report()).has_parameter_hash());
  StepReport report = Report();
  report.parameter_hash_part = 0;
  EXPECT_TRUE(Encode(report).has_parameter_hash());
  report.parameter_hash_part = ~uint64_t{0};
  EXPECT_EQ(Encode(report).parameter_hash_part(), ~uint64_t{0});
}

TEST_F(ReportsTest, OnlyOperationsThatMovedBytesAreNamed) {
  StepReport report = Report();
  EXPECT_TRUE(Encode(report).bytes_moved().empty());
  report.op_bytes[static_cast<size_t>(Op::kSendAct)] = 5;
  report.op_bytes[static_cast<size_t>(Op::kReduce)] = int64_t{1} << 40;
  const auto moved = Encode(report).bytes_moved();
  EXPECT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved.at("SEND_ACT"), 5);
  EXPECT_EQ(moved.at("REDUCE"), int64_t{1} << 40);
}

TEST_F(ReportsTest, MemoryIsThePeakOfEachKind) {
  {
    const auto gone = device_->Allocate(640, MemoryKind::kGradients);
    ASSERT_TRUE(gone.ok());
  }
  const auto parameters = device_->Allocate(64, MemoryKind::kParameters);
  const auto optimizer = device_->Allocate(128, MemoryKind::kOptimizer);
  const auto slots = device_->Allocate(192, MemoryKind::kSlots);
  const auto workspace = device_->Allocate(256, MemoryKind::kWorkspace);
  const auto other = device_->Allocate(4096, MemoryKind::kOther);
  const v1::MemoryProto memory = Encode(Report()).memory();
  EXPECT_EQ(memory.parameters_bytes(), 64);
  EXPECT_EQ(memory.gradients_bytes(), 640);
  EXPECT_EQ(memory.optimizer_bytes(), 128);
  EXPECT_EQ(memory.slots_bytes(), 192);
  EXPECT_EQ(memory.workspace_bytes(), 256);
}

TEST(Failures, OnlyALostPeerAndAnAbortAreConsequences) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const bool expected = status.code() == absl::StatusCode::kUnavailable ||
                          status.code() == absl::StatusCode::kAborted;
    EXPECT_EQ(IsConsequence(status), expected) << status;
    const v1::Failed failed = EncodeFailure(status, 9);
    EXPECT_EQ(failed.consequence(), expected) << status;
    EXPECT_EQ(failed.code(), code);
    EXPECT_EQ(failed.message(), "why");
    EXPECT_EQ(failed.step(), 9);
  }
  EXPECT_FALSE(IsConsequence(absl::OkStatus()));
}

TEST(Failures, ANonFiniteValueStopsAllButFailsOneRank) {
  StepReport report;
  report.step = 5;
  report.non_finite = {true, 2, 3, -1};
  for (int rank = 0; rank < 4; ++rank) {
    const absl::Status status = StopAtNonFinite(report, rank);
    EXPECT_EQ(IsConsequence(status), rank != 2) << rank;
    EXPECT_NE(status.message().find("step 5: non-finite value first at rank 2, unit 3"),
              std::string::npos)
        << status;
    EXPECT_EQ(absl::StartsWith(status.message(), "stopped with rank 2: "), rank != 2) << status;
  }
}

}  // namespace
}  // namespace esteira
