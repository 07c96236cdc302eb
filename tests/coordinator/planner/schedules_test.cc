#include "coordinator/planner/schedules/schedules.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/schedules/list_schedule.h"
#include "coordinator/planner/schedules/timing.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

std::string Text(const std::vector<ChunkOp>& ops) {
  std::string text;
  for (const ChunkOp& op : ops) absl::StrAppend(&text, OpName(op.op), op.micro_batch, " ");
  return text;
}

PipelineTimes UnitTimes(const char* name, int stages, int micro_batches, int chunks) {
  const PipelineOps pipeline = FindSchedule(name)->generate({stages, chunks, micro_batches});
  const auto times = TimePipeline(pipeline, ChunkCosts::Unit(stages * chunks));
  EXPECT_TRUE(times.has_value());
  return *times;
}

double Peak(const PipelineTimes& times) {
  return *std::max_element(times.peak_bytes.begin(), times.peak_bytes.end());
}

// Idle time of a stage between two moments.
double IdleWithin(const PipelineTimes& times, size_t stage, double begin, double end) {
  double busy = 0;
  for (const auto& [from, to] : times.intervals[stage]) {
    busy += std::max(0.0, std::min(to, end) - std::max(from, begin));
  }
  return end - begin - busy;
}

TEST(SchedulesTest, Gpipe) {
  const StageOps ops = GpipeSchedule({2, 1, 3}).ops;
  EXPECT_EQ(Text(ops[0]), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(Text(ops[1]), "F0 F1 F2 B0 B1 B2 ");
}

TEST(SchedulesTest, OneForwardOneBackward) {
  const StageOps ops = OneForwardOneBackwardSchedule({3, 1, 4}).ops;
  EXPECT_EQ(Text(ops[0]), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(Text(ops[1]), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(Text(ops[2]), "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST(SchedulesTest, FewerMicroBatchesThanStages) {
  const StageOps ops = OneForwardOneBackwardSchedule({4, 1, 2}).ops;
  EXPECT_EQ(Text(ops[0]), "F0 F1 B0 B1 ");
  EXPECT_EQ(Text(ops[3]), "F0 B0 F1 B1 ");
}

TEST(SchedulesTest, InterleavedGoesThroughTheChunksInRounds) {
  const PipelineOps pipeline = InterleavedSchedule({2, 2, 4});
  EXPECT_EQ(pipeline.stage_of_chunk, (std::vector<int>{0, 1, 0, 1}));
  std::string forward;
  for (const ChunkOp& op : pipeline.ops[0]) {
    if (op.op == Op::kForward) absl::StrAppend(&forward, op.chunk, ":", op.micro_batch, " ");
  }
  EXPECT_EQ(forward, "0:0 0:1 2:0 2:1 0:2 0:3 2:2 2:3 ");
}

TEST(SchedulesTest, VShapesHoldBothEndsOnTheFirstStage) {
  for (const char* name : {"zb_v", "v_half", "v_min", "dualpipe_v"}) {
    EXPECT_EQ(FindSchedule(name)->generate({3, 2, 4}).stage_of_chunk,
              (std::vector<int>{0, 1, 2, 2, 1, 0}));
  }
}

TEST(SchedulesTest, ForwardOnly) {
  EXPECT_EQ(Text(ForwardOnlySchedule({0, 1}, 2, 2)[1]), "F0 F1 ");
  EXPECT_EQ(ForwardOnlySchedule({0, 1, 1, 0}, 2, 1)[0],
            (std::vector<ChunkOp>{{Op::kForward, 0, 0}, {Op::kForward, 3, 0}}));
}

// Every (chunk, micro-batch) has one F and one B or I and W, on the stage of the chunk, gradients
// are added in ascending order, and the passes can be carried out in the order given.
TEST(SchedulesTest, EveryScheduleComputesEverythingOnceAndEnds) {
  for (const Schedule& schedule : TrainingSchedules()) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      if (chunks < schedule.min_chunks_per_stage || chunks > schedule.max_chunks_per_stage)
        continue;
      for (int stages = 1; stages <= 8; ++stages) {
        for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
          const std::string where =
              absl::StrCat(schedule.name, " ", stages, "x", chunks, "x", micro_batches);
          const PipelineOps pipeline = schedule.generate({stages, chunks, micro_batches});
          ASSERT_EQ(pipeline.stage_of_chunk.size(), static_cast<size_t>(stages * chunks)) << where;
          std::map<std::pair<int, int>, int> next;  // by chunk and kind of op
          for (size_t s = 0; s < pipeline.ops.size(); ++s) {
            for (const ChunkOp& op : pipeline.ops[s]) {
              ASSERT_EQ(pipeline.stage_of_chunk[static_cast<size_t>(op.chunk)],
                        static_cast<int>(s));
              const auto count = [&](int kind) {
                ASSERT_EQ(op.micro_batch, (next[{op.chunk, kind}]++)) << where;
              };
              if (op.op == Op::kForward) count(0);
              if (op.op == Op::kBackward || op.op == Op::kBackwardInput) count(1);
              if (op.op == Op::kBackward || op.op == Op::kBackwardWeight) count(2);
            }
          }
          for (int chunk = 0; chunk < stages * chunks; ++chunk) {
            for (int kind = 0; kind < 3; ++kind) {
              ASSERT_EQ((next[{chunk, kind}]), micro_batches) << where;
            }
          }
          ASSERT_TRUE(TimePipeline(pipeline, ChunkCosts::Unit(stages * chunks)).has_value())
              << where;
        }
      }
    }
  }
}

// The results of the papers, for equal F, I and W. Times in passes of one chunk.
TEST(SchedulesTest, BubblesAreThoseOfThePapers) {
  for (int p : {2, 4, 7, 8}) {
    for (int m : {2 * p, 3 * p + 1, 8 * p}) {
      const double one_f_one_b = UnitTimes("1f1b", p, m, 1).bubble_ratio();
      EXPECT_NEAR(one_f_one_b, (p - 1.0) / (m + p - 1), 1e-12);
      // A third of 1F1B's idle time.
      EXPECT_DOUBLE_EQ(UnitTimes("1f1b", p, m, 1).makespan - 3 * m, 3 * (p - 1));
      EXPECT_DOUBLE_EQ(UnitTimes("zb_h1", p, m, 1).makespan - 3 * m, p - 1);
      // A step begins and ends with all stages together, and the last stage has nothing to do
      // before p - 1 passes: with a whole step's work after that, no schedule can be shorter.
      EXPECT_DOUBLE_EQ(UnitTimes("zb_h2", p, m, 1).makespan, 3 * m + p - 1);
      EXPECT_DOUBLE_EQ(UnitTimes("zb_v", p, m, 2).makespan, 6 * m + p - 1);
      EXPECT_DOUBLE_EQ(UnitTimes("dualpipe_v", p, m, 2).makespan, 6 * m + p - 1);
      // With v chunks the pipeline fills and drains v times as fast.
      const int even = m / p * p;
      EXPECT_DOUBLE_EQ(UnitTimes("interleaved", p, even, 2).makespan - 6 * even, 3 * (p - 1));
    }
  }
}

TEST(SchedulesTest, NoStageIsIdleInTheSteadyStateOfZeroBubbles) {
  for (int p : {2, 4, 8}) {
    const int m = 8 * p;
    for (const auto& [name, chunks] : {std::pair{"zb_h1", 1}, {"zb_h2", 1}, {"zb_v", 2}}) {
      const PipelineTimes times = UnitTimes(name, p, m, chunks);
      for (size_t s = 0; s < static_cast<size_t>(p); ++s) {
        EXPECT_DOUBLE_EQ(IdleWithin(times, s, 6.0 * p * chunks, 3.0 * (m - p) * chunks), 0)
            << name << " stage " << s;
      }
    }
    // ZB-H2: not even at its own beginning and end.
    const PipelineTimes times = UnitTimes("zb_h2", p, m, 1);
    for (size_t s = 0; s < static_cast<size_t>(p); ++s) {
      const auto& intervals = times.intervals[s];
      EXPECT_DOUBLE_EQ(intervals.back().second - intervals.front().first, 3 * m);
    }
  }
}

TEST(SchedulesTest, PeaksOfActivationsAreThoseOfThePapers) {
  for (int p : {4, 8, 16, 32}) {
    const int m = 3 * p;
    const double one = Peak(UnitTimes("1f1b", p, m, 1));
    EXPECT_EQ(one, p);
    EXPECT_EQ(Peak(UnitTimes("zb_h1", p, m, 1)), one);
    EXPECT_EQ(Peak(UnitTimes("zb_h2", p, m, 1)), 2 * one - 1);
    // Chunks are half as large. What a pattern holds is a whole number of passes: up to two more.
    EXPECT_EQ(Peak(UnitTimes("zb_v", p, m, 2)) / 2, one);
    EXPECT_LE(Peak(UnitTimes("v_half", p, m, 2)) / 2, one / 2 + 2);
    EXPECT_GE(Peak(UnitTimes("v_half", p, m, 2)) / 2, one / 2);
    EXPECT_LE(Peak(UnitTimes("v_min", p, m, 2)) / 2, one / 3 + 1.5);
    EXPECT_GE(Peak(UnitTimes("v_min", p, m, 2)) / 2, one / 3);
  }
}

TEST(SchedulesTest, RegistryKnowsItsNamesOnly) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "v_half",
                           "v_min", "dualpipe_v"}) {
    ASSERT_NE(FindSchedule(name), nullptr) << name;
    EXPECT_STREQ(FindSchedule(name)->name, name);
  }
  EXPECT_EQ(FindSchedule("1F1B"), nullptr);
  EXPECT_EQ(FindSchedule("auto"), nullptr);
  EXPECT_EQ(FindSchedule(""), nullptr);
  EXPECT_EQ(ScheduleNames(),
            "1f1b, gpipe, interleaved, zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe_v");
}

// Uneven passes, links and a budget.
ChunkCosts Uneven(int stages, int chunks, double budget, uint64_t seed) {
  ChunkCosts costs = ChunkCosts::Unit(stages * chunks);
  for (size_t c = 0; c < costs.bytes.size(); ++c) {
    const auto part = [&](uint64_t salt) {
      return 0.7 + 0.6 * static_cast<double>((seed * 31 + c * 7 + salt * 13) % 17) / 16;
    };
    costs.forward_seconds[c] = part(1);
    costs.input_seconds[c] = 1.2 * part(2);
    costs.weight_seconds[c] = 0.8 * part(3);
    costs.link_seconds[c] = 0.1 * part(4);
  }
  if (budget > 0) costs.budget_bytes.assign(static_cast<size_t>(stages), budget);
  return costs;
}

TEST(SchedulesTest, ABuiltScheduleIsNeverWorseThanTheBestNamedOne) {
  int shorter = 0;
  for (int chunks : {1, 2}) {
    for (int p : {2, 4, 6}) {
      for (int m : {1, 3, 8, 16}) {
        for (double budget : {0.0, 1.0 * p * chunks, 1.5 * p * chunks, 0.5 * p * chunks}) {
          const PipelineShape shape{p, chunks, m};
          const std::vector<int> placement = WavePlacement(shape);
          const ChunkCosts costs = Uneven(p, chunks, budget, static_cast<uint64_t>(p * m));
          std::vector<PipelineOps> named;
          double best_named = 1e18;
          for (const Schedule& schedule : TrainingSchedules()) {
            if (chunks < schedule.min_chunks_per_stage || chunks > schedule.max_chunks_per_stage)
              continue;
            PipelineOps ops = schedule.generate(shape);
            if (ops.stage_of_chunk != placement) continue;
            const auto times = TimePipeline(ops, costs);
            if (FitsBudget(*times, costs)) best_named = std::min(best_named, times->makespan);
            named.push_back(std::move(ops));
          }
          const auto built = BestSchedules(shape, placement, costs, named, 2);
          ASSERT_FALSE(built.empty());
          const auto times = TimePipeline(built.front(), costs);
          ASSERT_TRUE(times.has_value());
          EXPECT_TRUE(FitsBudget(*times, costs));
          EXPECT_LE(times->makespan, best_named * (1 + 1e-9));
          shorter += times->makespan < best_named * 0.999 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(shorter, 20);  // of 96: it does not merely copy
}

TEST(SchedulesTest, AListScheduleEndsUnderEveryBudgetThatHoldsOneMicroBatch) {
  for (int chunks : {1, 2, 3}) {
    for (int p : {1, 3, 5}) {
      const PipelineShape shape{p, chunks, 7};
      for (const std::vector<int>& placement : {WavePlacement(shape), RoundRobinPlacement(shape)}) {
        for (double budget : {1.0 * chunks, chunks + 1.0}) {
          const ChunkCosts costs = Uneven(p, chunks, budget, 5);
          for (double fit : {0.0, 1.0}) {
            const auto listed = ListSchedule(shape, placement, costs, {-1, fit, true});
            ASSERT_TRUE(listed.has_value());
            EXPECT_TRUE(FitsBudget(*TimePipeline(*listed, costs), costs));
          }
        }
        const ChunkCosts none = Uneven(p, chunks, chunks - 0.5, 5);
        EXPECT_FALSE(ListSchedule(shape, placement, none, {}).has_value());
      }
    }
  }
}

TEST(SchedulesTest, StuckPassesAreFound) {
  PipelineOps pipeline = OneForwardOneBackwardSchedule({2, 1, 1});
  std::swap(pipeline.ops[0][0], pipeline.ops[0][1]);  // B before F
  EXPECT_FALSE(TimePipeline(pipeline, ChunkCosts::Unit(2)).has_value());
}

}  // namespace
}  // namespace esteira
