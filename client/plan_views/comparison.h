// Schedules side by side. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/plan_views/step_chart.h"
#include "common/plan/plan.h"

namespace esteira {

struct ComparedSchedule {
  std::string name;
  std::string refusal;  // why it cannot run; the figures are then of no meaning
  double step_seconds = 0;
  double bubble_ratio = 0;
  double exposed_communication_ratio = 0;
  int64_t peak_bytes = 0;  // of the stage whose ranks need most
  int peak_stage = 0;
  double held_micro_batches = 0;  // of the stage that holds most
};

ComparedSchedule FiguresOf(const std::string& name, const Plan& plan, const StepChart& chart);

// A row a schedule, in the order given; step and memory relative to the best of those that run.
std::string ComparisonTable(const std::vector<ComparedSchedule>& schedules);

}  // namespace esteira
