#include "client/plan_views/stage_memory.h"

#include <algorithm>
#include <numeric>

namespace esteira {

const char* MemoryPartName(size_t part) {
  constexpr std::array<const char*, kNumMemoryParts> kNames = {
      "parameters", "gradients", "optimizer", "slots (activations, windows)", "workspace"};
  return kNames[part];
}

int64_t StageMemory::total() const {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

std::vector<StageMemory> MemoryByStage(const Plan& plan, const std::vector<int64_t>& budgets) {
  std::vector<StageMemory> stages(static_cast<size_t>(plan.layout.stages));
  const std::vector<MemoryUse>& memory = plan.prediction.memory;
  if (memory.empty()) return stages;  // nothing was predicted
  for (int rank = 0; rank < plan.layout.num_ranks(); ++rank) {
    StageMemory of_rank;
    of_rank.rank = rank;
    of_rank.stage = plan.layout.StageOfRank(rank);
    const MemoryUse& use = memory[static_cast<size_t>(of_rank.stage)];
    const auto i = static_cast<size_t>(rank);
    of_rank.parts = {use.parameters, use.gradients, use.optimizer, use.slots, use.workspace};
    of_rank.budget = i < budgets.size() ? budgets[i] : 0;
    StageMemory& fullest = stages[static_cast<size_t>(of_rank.stage)];
    const bool first = of_rank.rank == of_rank.stage;
    if (first || of_rank.total() - of_rank.budget > fullest.total() - fullest.budget) {
      fullest = of_rank;
    }
  }
  return stages;
}

int64_t MemoryScale(const std::vector<StageMemory>& stages) {
  constexpr int64_t kMostRoom = 4;  // times the largest rank
  int64_t largest = 1;
  int64_t budget = 0;
  for (const StageMemory& stage : stages) {
    largest = std::max(largest, stage.total());
    budget = std::max(budget, stage.budget);
  }
  return std::clamp(budget, largest, kMostRoom * largest);
}

}  // namespace esteira
