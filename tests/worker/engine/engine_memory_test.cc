#include <gtest/gtest.h>

#include <algorithm>

#include "common/plan/shard_map.h"
#include "common/plan/validate.h"
#include "tests/worker/engine/local_cluster.h"

namespace esteira {
namespace {

MemoryUse Measured(const Device& device) {
  return {.parameters = device.bytes_in_use(MemoryKind::kParameters),
          .gradients = device.bytes_in_use(MemoryKind::kGradients),
          .optimizer = device.bytes_in_use(MemoryKind::kOptimizer),
          .slots = device.bytes_in_use(MemoryKind::kSlots),
          .workspace = device.bytes_in_use(MemoryKind::kWorkspace)};
}

// Parameters, sums and states of one rank by the formulas of ZeRO (Rajbhandari et al., 2020): 2 or
// 4, 4 (8 when exact) and 12 bytes an element; what a level shards is divided by the replicas,
// after padding to a multiple of 64 elements each.
MemoryUse ByFormula(const Plan& plan, const Program& program) {
  const std::vector<UnitSpec> units = MakeUnits(plan.model);
  const int zero = plan.layout.zero;
  MemoryUse use;
  for (int index : program.units) {
    const UnitSpec& unit = units[static_cast<size_t>(index)];
    const int64_t block = 64 * plan.layout.replicas;
    const int64_t whole = (unit.flat_elements + block - 1) / block * block;
    const int64_t shard = whole / plan.layout.replicas;
    const bool head_end = unit.owner >= 0;
    const bool alias =
        head_end && std::count(program.units.begin(), program.units.end(), unit.owner) > 0;
    if (!alias) use.parameters += BytesOf(plan.precision) * (zero == 3 ? shard : whole);
    const int64_t sum_bytes = plan.layout.numerics == Numerics::kExact ? 8 : 4;
    use.gradients += sum_bytes * (zero >= 2 ? shard : whole);
    if (!head_end) use.optimizer += 12 * (zero >= 1 ? shard : whole);
  }
  return use;
}

struct Case {
  Architecture architecture;
  Precision precision;
  int stages, replicas, zero, reduce_every, gather_for;
  const char* recompute;
  const char* schedule = "1f1b";
  int chunks = 1;
  Numerics numerics = Numerics::kFast;
  GradientTraffic gradient_traffic = GradientTraffic::kFull;
};

class MemoryTest : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryTest, WhatIsAllocatedIsWhatWasPlanned) {
  JobSpec job = ToyJob(GetParam().architecture);
  job.precision = GetParam().precision;
  job.numerics = GetParam().numerics;
  job.gradient_traffic = GetParam().gradient_traffic;
  job.layout.stages = GetParam().stages;
  job.layout.replicas = GetParam().replicas;
  job.layout.zero = GetParam().zero;
  job.layout.reduce_every = GetParam().reduce_every;
  job.layout.gather_for = GetParam().gather_for;
  job.layout.recompute = GetParam().recompute;
  job.layout.schedule = GetParam().schedule;
  job.layout.chunks_per_stage = GetParam().chunks;
  // Five stages of the toy model's six units are uneven; with chunks there must be enough of them.
  if (GetParam().chunks > 1) job.model.num_layers = 9;
  const auto made = LocalCluster::Make(job, {});
  ASSERT_TRUE(made.ok()) << made.status();
  LocalCluster& cluster = **made;
  const Plan& plan = cluster.plan();
  const auto check = [&] {
    for (int r = 0; r < cluster.num_ranks(); ++r) {
      const auto stage = static_cast<size_t>(plan.layout.StageOfRank(r));
      const MemoryUse measured = Measured(cluster.device(r));
      const MemoryUse formula = ByFormula(plan, plan.train[stage]);
      EXPECT_EQ(measured, plan.prediction.memory[stage]) << "rank " << r;
      EXPECT_EQ(measured, CountMemory(plan, plan.train[stage])) << "rank " << r;
      EXPECT_EQ(measured.parameters, formula.parameters) << "rank " << r;
      EXPECT_EQ(measured.gradients, formula.gradients) << "rank " << r;
      EXPECT_EQ(measured.optimizer, formula.optimizer) << "rank " << r;
      EXPECT_GT(measured.slots, 0);
    }
  };
  check();
  std::vector<int64_t> peaks;
  for (int rank = 0; rank < cluster.num_ranks(); ++rank) {
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
      peaks.push_back(cluster.device(rank).peak_bytes(static_cast<MemoryKind>(kind)));
    }
  }
  ASSERT_TRUE(cluster.Step(1, ToySamples(job)).ok());
  ASSERT_TRUE(cluster.Evaluate(1, ToySamples(job)).ok());
  check();
  // A step allocates nothing.
  size_t i = 0;
  for (int rank = 0; rank < cluster.num_ranks(); ++rank) {
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
      EXPECT_EQ(cluster.device(rank).peak_bytes(static_cast<MemoryKind>(kind)), peaks[i++]);
    }
  }
}

constexpr Architecture kGpt2 = Architecture::kGpt2;
constexpr Architecture kLlama = Architecture::kLlama;
constexpr Precision kFp32 = Precision::kFp32;
constexpr Precision kBf16 = Precision::kBf16;
constexpr Numerics kFast = Numerics::kFast;
constexpr Numerics kExact = Numerics::kExact;
constexpr GradientTraffic kBf16Traffic = GradientTraffic::kBf16;

INSTANTIATE_TEST_SUITE_P(
    Layouts, MemoryTest,
    ::testing::Values(
        Case{kGpt2, kFp32, 1, 1, 0, kAll, 1, "none"}, Case{kGpt2, kFp32, 1, 3, 3, 1, 1, "none"},
        Case{kGpt2, kBf16, 2, 2, 0, kAll, 1, "none"}, Case{kGpt2, kBf16, 2, 2, 1, kAll, 1, "none"},
        Case{kGpt2, kBf16, 2, 2, 2, kAll, 1, "none"}, Case{kGpt2, kBf16, 2, 2, 3, kAll, 1, "none"},
        Case{kGpt2, kFp32, 4, 3, 3, 1, 2, "full"}, Case{kLlama, kFp32, 1, 2, 1, 1, 1, "none"},
        Case{kLlama, kBf16, 4, 1, 2, 1, kAll, "none"},
        Case{kLlama, kFp32, 2, 3, 3, kAll, kAll, "full"},
        Case{kGpt2, kFp32, 3, 2, 1, kAll, 1, "none", "zb_h1"},
        Case{kGpt2, kBf16, 4, 1, 0, kAll, 1, "none", "zb_h2"},
        Case{kGpt2, kFp32, 2, 2, 3, 2, 2, "full", "interleaved", 3},
        Case{kGpt2, kBf16, 2, 2, 2, 1, 1, "none", "zb_v", 2},
        Case{kLlama, kFp32, 3, 2, 3, 1, 1, "none", "v_half", 2},
        Case{kGpt2, kFp32, 4, 1, 0, kAll, 1, "none", "v_min", 2},
        Case{kGpt2, kBf16, 2, 3, 3, kAll, 1, "full", "dualpipe_v", 2},
        Case{kGpt2, kFp32, 3, 2, 1, kAll, 1, "none", "auto", 2},
        Case{kGpt2, kFp32, 1, 3, 0, kAll, 1, "none", "1f1b", 1, kFast, kBf16Traffic},
        Case{kLlama, kBf16, 2, 2, 3, 1, 1, "none", "1f1b", 1, kFast, kBf16Traffic},
        Case{kGpt2, kFp32, 1, 1, 0, kAll, 1, "none", "1f1b", 1, kExact},
        Case{kGpt2, kBf16, 2, 3, 1, 2, 1, "full", "zb_h1", 1, kExact},
        Case{kGpt2, kFp32, 2, 2, 2, 1, 1, "none", "zb_v", 2, kExact},
        Case{kLlama, kFp32, 3, 1, 0, 1, 1, "none", "1f1b", 1, kExact},
        Case{kLlama, kBf16, 2, 3, 3, kAll, kAll, "full", "1f1b", 1, kExact}));

}  // namespace
}  // namespace esteira
