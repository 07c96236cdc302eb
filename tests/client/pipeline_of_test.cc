#include "client/plan_views/pipeline_of.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/lowering/lowering.h"
#include "coordinator/planner/schedules/csv.h"
#include "tests/coordinator/planner/toy.h"

namespace esteira {
namespace {

// What a schedule says, what the lowered plan does, and what is read from its CSV are the same.
TEST(PipelineOf, IsTheScheduleThatThePlanWasMadeOf) {
  for (const Schedule& schedule : TrainingSchedules()) {
    for (const bool recompute : {false, true}) {
      const PipelineShape shape{
          .stages = 3, .chunks_per_stage = schedule.min_chunks_per_stage, .micro_batches = 5};
      const PipelineOps pipeline = schedule.generate(shape);
      const ModelSpec model = ToyModel(8, /*tied=*/true);
      StagePolicy policy;
      policy.recompute = recompute;
      const Layout layout = ToyLayout(model, shape.stages, /*replicas=*/2, shape.micro_batches,
                                      schedule.name, /*zero=*/3, policy, shape.chunks_per_stage);
      absl::StatusOr<Plan> plan = Generate(model, layout, Precision::kFp32, pipeline);
      ASSERT_TRUE(plan.ok()) << schedule.name << plan.status();
      plan = Lower(*std::move(plan));
      ASSERT_TRUE(plan.ok()) << schedule.name << plan.status();
      EXPECT_TRUE(PipelineOf(*plan) == pipeline) << schedule.name;
      const std::string csv = WriteCsvSchedule(pipeline);
      const auto read = ReadCsvSchedule(csv);
      if (const auto* fault = std::get_if<CsvFault>(&read)) {
        ADD_FAILURE() << schedule.name << "\n" << MarkFault(csv, *fault);
        continue;
      }
      EXPECT_TRUE(std::get<CsvSchedule>(read).pipeline == pipeline) << schedule.name;
    }
  }
}

}  // namespace
}  // namespace esteira
