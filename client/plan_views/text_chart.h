// A step as a Gantt chart for a terminal, and memory as bars. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/plan_views/step_chart.h"
#include "common/plan/plan.h"

namespace esteira {

struct TextStyle {
  int width = 100;
  bool color = false;
  int max_rows = 16;  // of more, a sample is shown
};

// Time from left to right, a line a stage; at the right what its compute queue was.
std::string TextChart(const StepChart& chart, const TextStyle& style);

// A bar a stage, of its fullest replica. `budgets`: bytes by rank, 0 where unknown.
std::string MemoryBars(const Plan& plan, const std::vector<int64_t>& budgets,
                       const TextStyle& style);

}  // namespace esteira
