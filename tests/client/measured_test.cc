#include "client/measured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/instruction.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Job Job() {
  v1::Job job;
  job.mutable_prediction()->set_step_seconds(0.2);
  job.mutable_prediction()->set_bubble_ratio(0.25);
  job.mutable_prediction()->set_exposed_communication_ratio(0);
  for (int op = 0; op < kNumOps; ++op) job.mutable_prediction()->add_op_seconds(1);
  return job;
}

v1::StepRecord Step(double seconds) {
  v1::StepRecord step;
  step.set_step_seconds(seconds);
  step.set_bubble_ratio(0.5);
  step.set_exposed_communication_ratio(0.125);
  step.set_predicted_peak_bytes(2048);
  step.set_peak_bytes(1024);
  for (int op = 0; op < kNumOps; ++op) {
    (*step.mutable_op_seconds())[OpName(static_cast<Op>(op))] = 1;
  }
  return step;
}

TEST(PredictedAndMeasured, AveragesTheStepsAndNamesTheThreeThatDifferMost) {
  std::vector<v1::StepRecord> steps = {Step(0.1), Step(0.5)};
  for (v1::StepRecord& step : steps) {
    auto& seconds = *step.mutable_op_seconds();
    seconds["F"] = 1.5;
    seconds["B"] = 0.25;
    seconds["STEP"] = 4;
    seconds["CLEAR"] = 1.25;
    seconds["RECV_ACT"] = 100;  // holds the wait for the sender
  }
  EXPECT_THAT(PredictedAndMeasured(Job(), steps),
              ElementsAre(ElementsAre("", "PREDICTED", "MEASURED", "RATIO"),
                          ElementsAre("Step", "200 ms", "300 ms", "1.50"),
                          ElementsAre("Bubble", "25.0 %", "50.0 %", "2.00"),
                          ElementsAre("Exposed communication", "0.0 %", "12.5 %", "-"),
                          ElementsAre("Peak memory", "2.0 KiB", "1.0 KiB", "0.50"),
                          ElementsAre("STEP, all ranks", "1.0 s", "4.0 s", "4.00"),
                          ElementsAre("B, all ranks", "1.0 s", "250 ms", "0.25"),
                          ElementsAre("F, all ranks", "1.0 s", "1.5 s", "1.50")));
}

TEST(PredictedAndMeasured, WhatNeverRanAndWasNotExpectedIsLeftOut) {
  v1::Job job = Job();
  job.mutable_prediction()->clear_op_seconds();
  for (int op = 0; op < kNumOps; ++op) job.mutable_prediction()->add_op_seconds(0);
  v1::StepRecord step = Step(0.2);
  step.clear_op_seconds();
  EXPECT_EQ(PredictedAndMeasured(job, {step}).size(), 5u);
}

TEST(PredictedAndMeasured, WithoutStepsOrPredictionThereIsNothing) {
  EXPECT_THAT(PredictedAndMeasured(Job(), {}), IsEmpty());
  EXPECT_THAT(PredictedAndMeasured(v1::Job(), {Step(1)}), IsEmpty());
}

}  // namespace
}  // namespace esteira
