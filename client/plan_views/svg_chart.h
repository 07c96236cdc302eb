// A step as a picture for a talk: stages as rows, computation as boxes, communication as thin bars
// under them, memory at the right. One SVG without scripts, links or fonts of its own; light or
// dark as the viewer is. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/plan_views/step_chart.h"
#include "common/plan/plan.h"

namespace esteira {

struct SvgTitle {
  std::string title;     // any text
  std::string subtitle;  // any text
};

// `budgets`: bytes by rank, 0 where unknown; may be empty.
std::string SvgChart(const SvgTitle& title, const Plan& plan, const StepChart& chart,
                     const std::vector<int64_t>& budgets);

// The text as XML content, whatever it holds.
std::string XmlText(const std::string& text);

}  // namespace esteira
