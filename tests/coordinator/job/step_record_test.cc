#include "coordinator/job/step_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/rpc/json.h"
#include "coordinator/job/job_messages.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {
namespace {

StepRecord Example() {
  StepRecord record;
  record.step = 3;
  record.loss = 0.1;
  record.gradient_norm = 1.5;
  record.learning_rate = 6e-4;
  record.tokens = 1024;
  record.valid_tokens = 1000;
  record.step_seconds = 0.25;
  record.tokens_per_second = 4096;
  record.parameter_hash = "00000000000000ff";
  record.epoch = 2;
  record.op_seconds[static_cast<size_t>(Op::kStep)] = 0.125;
  record.op_seconds[static_cast<size_t>(Op::kForward)] = 0.5;
  record.peak_bytes = 15;
  record.peak_memory = {1, 2, 3, 4, 5};
  record.predicted_step_seconds = 0.5;
  record.predicted_bubble_ratio = 0.75;
  record.predicted_peak_bytes = 16;
  return record;
}

// The names and their order are the contract's.
TEST(StepRecord, IsALineOfTheContractsFields) {
  StepRecord record = Example();
  record.gradient_norm = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      ToJson(EncodeStepRecord(record)),
      "{\"step\": 3, \"loss\": 0.1, \"gradient_norm\": \"-Infinity\", \"learning_rate\": 6e-04, "
      "\"tokens\": 1024, \"valid_tokens\": 1000, \"skipped\": false, \"skip_cause\": \"\", "
      "\"step_seconds\": 0.25, \"tokens_per_second\": 4096, \"model_flops_utilization\": 0, "
      "\"bubble_ratio\": 0, \"exposed_communication_ratio\": 0, "
      "\"parameter_hash\": \"00000000000000ff\", \"epoch\": 2, "
      "\"loss_bits\": \"3fb999999999999a\", \"gradient_norm_bits\": \"fff0000000000000\", "
      "\"memory\": [], \"op_seconds\": {\"F\": 0.5, \"STEP\": 0.125}, \"peak_bytes\": 15, "
      "\"peak_memory\": {\"parameters_bytes\": 1, \"gradients_bytes\": 2, "
      "\"optimizer_bytes\": 3, \"slots_bytes\": 4, \"workspace_bytes\": 5}, "
      "\"predicted_step_seconds\": 0.5, \"predicted_bubble_ratio\": 0.75, "
      "\"predicted_peak_bytes\": 16}");
}

TEST(StepRecord, SurvivesTheWireToTheBit) {
  StepRecord record = Example();
  record.loss = std::nextafter(0.1, 1.0);
  record.memory = {{1, 2, 3, 4, 5}, {}};
  record.validation_loss = -0.0;
  const StepRecord back = DecodeStepRecord(EncodeStepRecord(record));
  EXPECT_EQ(ToJson(EncodeStepRecord(back)), ToJson(EncodeStepRecord(record)));
  EXPECT_EQ(back.memory, record.memory);
  EXPECT_EQ(EncodeStepRecord(record).loss_bits(), "3fb999999999999b");
}

}  // namespace
}  // namespace esteira
