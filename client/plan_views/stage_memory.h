// The memory of each stage's fullest rank, in the parts that views draw. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

namespace esteira {

inline constexpr size_t kNumMemoryParts = 5;
const char* MemoryPartName(size_t part);  // "parameters", ...

struct StageMemory {
  int stage = 0;
  int rank = 0;
  std::array<int64_t, kNumMemoryParts> parts{};
  int64_t budget = 0;  // 0: unknown
  int64_t total() const;
};

// By stage, of the replica with the least room left. `budgets`: bytes by rank, 0 where unknown; may
// be empty.
std::vector<StageMemory> MemoryByStage(const Plan& plan, const std::vector<int64_t>& budgets);

// What the longest bar stands for: the largest rank, and the largest budget unless that would leave
// the bars too short to read.
int64_t MemoryScale(const std::vector<StageMemory>& stages);

}  // namespace esteira
