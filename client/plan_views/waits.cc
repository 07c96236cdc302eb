#include "client/plan_views/waits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace esteira {
namespace {

constexpr double kLeastShown = 0.0005;

// Shares of the step by op, the largest first, of one of the two kinds of waits.
std::string SharesText(const Simulation& simulation, bool stages) {
  std::vector<std::pair<double, Op>> shares;
  for (int index = 0; index < kNumOps; ++index) {
    const Op op = static_cast<Op>(index);
    if (WaitsForStages(op) != stages) continue;
    double share = 0;
    for (const TimeUse& use : simulation.time_uses) {
      share += use.waited[static_cast<size_t>(index)] / simulation.execution.makespan /
               static_cast<double>(simulation.time_uses.size());
    }
    if (share >= kLeastShown) shares.emplace_back(share, op);
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [share, op] : shares) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", OpName(op),
                    absl::StrFormat(" %.1f %%", 100 * share));
  }
  return text;
}

}  // namespace

std::string WaitsText(const Simulation& simulation) {
  std::string text = absl::StrFormat("utilization %.1f %%", 100 * simulation.utilization);
  const std::string waits = SharesText(simulation, true);
  const std::string exposed = SharesText(simulation, false);
  if (!waits.empty()) absl::StrAppend(&text, "; waits for other stages: ", waits);
  if (!exposed.empty()) absl::StrAppend(&text, "; communication that is not hidden: ", exposed);
  return text;
}

}  // namespace esteira
