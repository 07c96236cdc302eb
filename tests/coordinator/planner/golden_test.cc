// The lowered plans of small layouts, as text. ESTEIRA_UPDATE_GOLDEN=1 writes them anew.
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "coordinator/planner/lowering/lowering.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

struct Golden {
  std::string name;
  int layers;
  int stages;
  int replicas;
  int micro_batches;
  int zero;
  int reduce_every;
  int gather_for;
  bool tied;
  bool recompute;
  const char* schedule;
  int chunks = 1;
};

class GoldenTest : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenTest, PlanIsAsWritten) {
  const Golden& golden = GetParam();
  const ModelSpec model = ToyModel(golden.layers, golden.tied);
  const Layout layout = ToyLayout(
      model, golden.stages, golden.replicas, golden.micro_batches, golden.schedule, golden.zero,
      {golden.reduce_every, golden.gather_for, golden.recompute},
      FindSchedule(golden.schedule)->min_chunks_per_stage == 2 || golden.chunks == 2 ? 2 : 1);
  absl::StatusOr<Plan> plan = Generate(model, layout, Precision::kFp32);
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan = Lower(*std::move(plan));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string path = absl::StrCat(ESTEIRA_SOURCE_DIR "/tests/golden/", golden.name, ".plan");
  RealFileSystem files;
  if (std::getenv("ESTEIRA_UPDATE_GOLDEN") != nullptr) {
    const absl::Status written = WriteFileAtomically(files, path, PrintPlan(*plan));
    ASSERT_TRUE(written.ok()) << written;
  }
  const absl::StatusOr<std::string> text = files.Read(path);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(PrintPlan(*plan), *text);
  const absl::StatusOr<Plan> parsed = ParsePlan(*text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(*parsed == *plan);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, GoldenTest,
    ::testing::Values(
        Golden{"gpipe_4x4", 3, 4, 1, 4, 0, kAll, 1, false, false, "gpipe"},
        Golden{"1f1b_4x4", 3, 4, 1, 4, 0, kAll, 1, false, false, "1f1b"},
        Golden{"1f1b_4x1", 5, 4, 1, 1, 0, kAll, 1, true, false, "1f1b"},
        Golden{"1f1b_1x2_tied", 1, 1, 1, 2, 0, kAll, 1, true, false, "1f1b"},
        Golden{"1f1b_2x3_recompute", 2, 2, 1, 3, 0, kAll, 1, false, true, "1f1b"},
        Golden{"1f1b_2x3_zero1", 1, 2, 2, 3, 1, kAll, 1, true, false, "1f1b"},
        Golden{"gpipe_2x4_zero2_k2", 1, 2, 2, 4, 2, 2, 1, false, false, "gpipe"},
        Golden{"1f1b_2x3_zero3_k1_g1_tied", 2, 2, 2, 3, 3, 1, 1, true, false, "1f1b"},
        Golden{"gpipe_2x4_zero3_g2", 1, 2, 2, 4, 3, kAll, 2, false, false, "gpipe"},
        Golden{"interleaved_2x4", 6, 2, 1, 4, 0, kAll, 1, false, false, "interleaved", 2},
        Golden{"zb_h1_3x4", 3, 3, 1, 4, 0, kAll, 1, false, false, "zb_h1"},
        Golden{"zb_h2_3x4", 3, 3, 1, 4, 0, kAll, 1, false, false, "zb_h2"},
        Golden{"zb_v_2x4_tied", 4, 2, 1, 4, 0, kAll, 1, true, false, "zb_v"},
        Golden{"v_half_3x4", 5, 3, 1, 4, 0, kAll, 1, false, false, "v_half"},
        Golden{"v_min_3x4", 5, 3, 1, 4, 0, kAll, 1, false, false, "v_min"},
        Golden{"dualpipe_v_2x4_zero3", 4, 2, 2, 4, 3, 2, 2, true, false, "dualpipe_v"}),
    [](const ::testing::TestParamInfo<Golden>& golden) { return "p" + golden.param.name; });

}  // namespace
}  // namespace esteira
