#include "client/plan_views/comparison.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/render.h"

namespace esteira {
namespace {

std::string Ratio(double value, double best) {
  return best > 0 ? absl::StrFormat("%.2fx", value / best) : "-";
}

// The sentence of a refusal, without the picture that may follow it.
std::string FirstParagraph(const std::string& text) {
  return absl::StrReplaceAll(text.substr(0, text.find("\n\n")), {{"\n", ": "}});
}

}  // namespace

ComparedSchedule FiguresOf(const std::string& name, const Plan& plan, const StepChart& chart) {
  ComparedSchedule figures;
  figures.name = name;
  figures.step_seconds = plan.prediction.step_seconds;
  figures.bubble_ratio = plan.prediction.bubble_ratio;
  figures.exposed_communication_ratio = plan.prediction.exposed_communication_ratio;
  const std::vector<MemoryUse>& memory = plan.prediction.memory;
  for (size_t stage = 0; stage < memory.size(); ++stage) {
    if (memory[stage].total() <= figures.peak_bytes) continue;
    figures.peak_bytes = memory[stage].total();
    figures.peak_stage = static_cast<int>(stage);
  }
  for (const StageRow& row : chart.rows) {
    figures.held_micro_batches = std::max(figures.held_micro_batches, row.held_micro_batches);
  }
  return figures;
}

std::string ComparisonTable(const std::vector<ComparedSchedule>& schedules) {
  double fastest = std::numeric_limits<double>::infinity();
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const ComparedSchedule& schedule : schedules) {
    if (!schedule.refusal.empty()) continue;
    fastest = std::min(fastest, schedule.step_seconds);
    smallest = std::min(smallest, schedule.peak_bytes);
  }
  std::vector<std::vector<std::string>> rows = {{"SCHEDULE", "STEP", "OF BEST", "BUBBLE", "EXPOSED",
                                                 "PEAK MEMORY", "OF BEST", "STAGE", "HELD"}};
  for (const ComparedSchedule& schedule : schedules) {
    if (!schedule.refusal.empty()) {
      std::vector<std::string> row(rows[0].size(), "-");
      row[0] = schedule.name;
      row.push_back("cannot run: " + FirstParagraph(schedule.refusal));
      rows.push_back(std::move(row));
      continue;
    }
    rows.push_back(
        {schedule.name, FormatSeconds(schedule.step_seconds), Ratio(schedule.step_seconds, fastest),
         absl::StrFormat("%.1f%%", 100 * schedule.bubble_ratio),
         absl::StrFormat("%.1f%%", 100 * schedule.exposed_communication_ratio),
         FormatBytes(schedule.peak_bytes),
         Ratio(static_cast<double>(schedule.peak_bytes), static_cast<double>(smallest)),
         absl::StrCat(schedule.peak_stage), absl::StrFormat("%.1f", schedule.held_micro_batches)});
  }
  std::ostringstream out;
  PrintTable(rows, out);
  return absl::StrCat(out.str(),
                      "EXPOSED: waits for GATHER, REDUCE or TIE_PARAM. HELD: micro-batches whose "
                      "activations the fullest stage holds at once.\n");
}

}  // namespace esteira
