#include "coordinator/controller/calibration.h"

#include <gtest/gtest.h>

namespace esteira {
namespace {

constexpr size_t kF = static_cast<size_t>(Op::kForward);
constexpr size_t kB = static_cast<size_t>(Op::kBackward);
constexpr size_t kRecv = static_cast<size_t>(Op::kRecvAct);

TEST(Refine, ComesCloserWithEachStepAndStaysThere) {
  OpFactors factors = NoOpFactors();
  Prediction prediction;
  prediction.op_seconds[kF] = 2;
  StepRecord record;
  record.op_seconds[kF] = 6;
  double before = 1;
  for (int step = 0; step < 60; ++step) {
    Refine(NoOpFactors(), prediction, record, factors);
    EXPECT_GT(factors[kF], before);
    before = factors[kF];
    EXPECT_LT(factors[kF], 3);
  }
  EXPECT_NEAR(factors[kF], 3, 1e-3);
  EXPECT_EQ(factors[kB], 1) << "not measured";
}

TEST(Refine, AFactorThatIsRightStaysAsItIs) {
  OpFactors factors = NoOpFactors();
  factors[kF] = 3;
  Prediction prediction;
  prediction.op_seconds[kF] = 6;  // with the factor
  StepRecord record;
  record.op_seconds[kF] = 6;
  Refine(/*used=*/factors, prediction, record, factors);
  EXPECT_DOUBLE_EQ(factors[kF], 3);
}

TEST(Refine, TransfersAndWhatIsNotKnownDoNotCount) {
  OpFactors factors = NoOpFactors();
  Prediction prediction;
  prediction.op_seconds[kRecv] = 1;
  StepRecord record;
  record.op_seconds[kRecv] = 5;
  record.op_seconds[kF] = 5;  // no prediction
  Refine(NoOpFactors(), prediction, record, factors);
  EXPECT_EQ(factors, NoOpFactors());
}

TEST(Refine, NothingIsBelievedToDifferTooMuch) {
  OpFactors factors = NoOpFactors();
  Prediction prediction;
  prediction.op_seconds[kF] = 1e-9;
  prediction.op_seconds[kB] = 1e9;
  StepRecord record;
  record.op_seconds[kF] = record.op_seconds[kB] = 1;
  for (int step = 0; step < 200; ++step) Refine(NoOpFactors(), prediction, record, factors);
  EXPECT_NEAR(factors[kF], kMaxOpFactor, 1e-6);
  EXPECT_NEAR(factors[kB], 1 / kMaxOpFactor, 1e-6);
}

}  // namespace
}  // namespace esteira
