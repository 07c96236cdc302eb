#include "client/measured.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/render.h"
#include "common/plan/instruction.h"

namespace esteira {
namespace {

constexpr size_t kMaxOps = 3;

struct OpTimes {
  Op op;
  double predicted = 0;
  double measured = 0;
  double difference() const { return std::abs(measured - predicted); }
};

// The mean of `value` over the steps.
template <typename Value>
double Mean(const std::vector<v1::StepRecord>& steps, const Value& value) {
  double sum = 0;
  for (const v1::StepRecord& step : steps) sum += value(step);
  return sum / static_cast<double>(steps.size());
}

std::string Ratio(double predicted, double measured) {
  return predicted > 0 ? absl::StrFormat("%.2f", measured / predicted) : "-";
}

std::vector<std::string> SecondsRow(const std::string& name, double predicted, double measured) {
  return {name, FormatSeconds(predicted), FormatSeconds(measured), Ratio(predicted, measured)};
}

std::vector<std::string> PercentRow(const std::string& name, double predicted, double measured) {
  return {name, absl::StrFormat("%.1f %%", 100 * predicted),
          absl::StrFormat("%.1f %%", 100 * measured), Ratio(predicted, measured)};
}

std::vector<std::string> MemoryRow(const v1::StepRecord& step) {
  return {"Peak memory", FormatBytes(step.predicted_peak_bytes()), FormatBytes(step.peak_bytes()),
          Ratio(static_cast<double>(step.predicted_peak_bytes()),
                static_cast<double>(step.peak_bytes()))};
}

// Those that compute, the largest difference first.
std::vector<OpTimes> OpsByDifference(const v1::PredictionProto& prediction,
                                     const std::vector<v1::StepRecord>& steps) {
  std::vector<OpTimes> ops;
  for (int i = 0; i < std::min(kNumOps, prediction.op_seconds_size()); ++i) {
    const Op op = static_cast<Op>(i);
    if (QueueOf(op) != Queue::kCompute) continue;
    const double measured = Mean(steps, [&](const v1::StepRecord& step) {
      const auto seconds = step.op_seconds().find(OpName(op));
      return seconds == step.op_seconds().end() ? 0 : seconds->second;
    });
    const OpTimes times = {op, prediction.op_seconds(i), measured};
    if (times.difference() > 0) ops.push_back(times);
  }
  std::stable_sort(ops.begin(), ops.end(), [](const OpTimes& a, const OpTimes& b) {
    return a.difference() > b.difference();
  });
  if (ops.size() > kMaxOps) ops.resize(kMaxOps);
  return ops;
}

}  // namespace

std::vector<std::vector<std::string>> PredictedAndMeasured(
    const v1::Job& job, const std::vector<v1::StepRecord>& steps) {
  if (!job.has_prediction() || steps.empty()) return {};
  const v1::PredictionProto& prediction = job.prediction();
  const auto step_seconds = [](const v1::StepRecord& step) { return step.step_seconds(); };
  const auto bubble = [](const v1::StepRecord& step) { return step.bubble_ratio(); };
  const auto exposed = [](const v1::StepRecord& step) {
    return step.exposed_communication_ratio();
  };
  std::vector<std::vector<std::string>> rows = {
      {"", "PREDICTED", "MEASURED", "RATIO"},
      SecondsRow("Step", prediction.step_seconds(), Mean(steps, step_seconds)),
      PercentRow("Bubble", prediction.bubble_ratio(), Mean(steps, bubble)),
      PercentRow("Exposed communication", prediction.exposed_communication_ratio(),
                 Mean(steps, exposed)),
      MemoryRow(steps.back())};
  for (const OpTimes& times : OpsByDifference(prediction, steps)) {
    rows.push_back(
        SecondsRow(absl::StrCat(OpName(times.op), ", all ranks"), times.predicted, times.measured));
  }
  return rows;
}

}  // namespace esteira
