// Every schedule, with any stages, chunks, micro-batches, ZeRO level and windows, learns what one
// rank learns: the same loss, and to the bit the loss, norm and parameters of one stage with the
// same replicas and reduction window; with exact numerics, of one rank alone. Ranks are threads.
// ESTEIRA_LONG_GRID=1 runs ten times as many points (some minutes), ESTEIRA_SHORT_GRID=1 a
// quarter.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "tests/worker/engine/local_cluster.h"

namespace esteira {
namespace {

constexpr int64_t kSteps = 2;
const char* const kSchedules[] = {"1f1b", "gpipe",  "interleaved", "zb_h1",      "zb_h2",
                                  "zb_v", "v_half", "v_min",       "dualpipe_v", "auto"};

struct StepBits {
  uint64_t loss, gradient_norm, parameter_hash;
  bool operator==(const StepBits&) const = default;
};

void PrintTo(const StepBits& bits, std::ostream* out) {
  *out << absl::StrCat(absl::Hex(bits.loss), "/", absl::Hex(bits.gradient_norm), "/",
                       absl::Hex(bits.parameter_hash));
}

std::vector<StepBits> Train(const JobSpec& job) {
  const auto cluster = LocalCluster::Make(job, {});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return {};
  std::vector<StepBits> bits;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto result = (*cluster)->Step(step, ToySamples(job));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    bits.push_back({std::bit_cast<uint64_t>(result->report.loss),
                    std::bit_cast<uint64_t>(result->report.gradient_norm), result->parameter_hash});
  }
  return bits;
}

// One stage, ZeRO 0: what every layout with the same replicas and windows must give.
class References {
 public:
  const std::vector<StepBits>& Of(JobSpec job) {
    const auto key =
        std::make_tuple(job.model.architecture, job.model.num_layers, job.global_batch_size,
                        *job.layout.replicas, *job.layout.reduce_every);
    auto found = bits_.find(key);
    if (found == bits_.end()) {
      const JobSpec asked = job;
      job.layout = ToyJob(job.model.architecture).layout;
      job.layout.micro_batch_size = asked.layout.micro_batch_size;
      job.layout.replicas = asked.layout.replicas;
      job.layout.reduce_every = asked.layout.reduce_every;
      found = bits_.emplace(key, Train(job)).first;
    }
    return found->second;
  }

 private:
  std::map<std::tuple<Architecture, int64_t, int64_t, int, int>, std::vector<StepBits>> bits_;
};

// One rank: what every layout must give when numerics are exact.
class Oracles {
 public:
  const std::vector<StepBits>& Of(JobSpec job) {
    const auto key =
        std::make_tuple(job.model.architecture, job.model.num_layers, job.global_batch_size);
    auto found = bits_.find(key);
    if (found == bits_.end()) {
      const auto micro_batch_size = job.layout.micro_batch_size;
      job.layout = ToyJob(job.model.architecture).layout;
      job.layout.micro_batch_size = micro_batch_size;
      found = bits_.emplace(key, Train(job)).first;
    }
    return found->second;
  }

 private:
  std::map<std::tuple<Architecture, int64_t, int64_t>, std::vector<StepBits>> bits_;
};

class Draw {
 public:
  int operator()(int below) {
    random_ = Mix64(random_);
    return static_cast<int>(random_ % static_cast<uint64_t>(below));
  }

 private:
  uint64_t random_ = 11;
};

int NumPoints(int usual) {
  if (std::getenv("ESTEIRA_LONG_GRID") != nullptr) return 10 * usual;
  if (std::getenv("ESTEIRA_SHORT_GRID") != nullptr) return usual / 4;
  return usual;
}

bool Is(const char* schedule, const char* name) { return std::string(schedule) == name; }

int ChunksOf(const char* schedule, Draw& draw) {
  if (Is(schedule, "interleaved")) return 1 + draw(3);
  if (Is(schedule, "auto")) return 1 + draw(2);
  return Is(schedule, "1f1b") || Is(schedule, "gpipe") || Is(schedule, "zb_h1") ||
                 Is(schedule, "zb_h2")
             ? 1
             : 2;
}

// The i-th point: schedule, ZeRO level and stages go through all their combinations.
JobSpec Point(int i, Draw& draw) {
  const char* const schedule = kSchedules[i % 10];
  const int zero = i / 10 % 4;
  const int stages = 1 + i / 40 % 8;
  const int chunks = ChunksOf(schedule, draw);
  JobSpec job = ToyJob(draw(2) == 0 ? Architecture::kGpt2 : Architecture::kLlama);
  // As few different models as will do, so that references are shared.
  for (int64_t layers : {22, 14, 6, 2}) {
    if (layers + 2 >= int64_t{stages} * chunks) job.model.num_layers = layers;
  }
  const int replicas = zero == 0 && draw(2) == 0 ? 1 : 2 + draw(2);
  const int micro_batches = draw(3) == 0 ? 9 + draw(24) : 1 + draw(8);
  job.layout.micro_batch_size = 1;
  job.global_batch_size = int64_t{micro_batches} * replicas - draw(replicas);
  job.layout.stages = stages;
  job.layout.replicas = replicas;
  job.layout.zero = zero;
  job.layout.schedule = schedule;
  job.layout.chunks_per_stage = chunks;
  const int windows[] = {kAll, 1, 2, 3};
  job.layout.reduce_every = windows[draw(4)];
  job.layout.gather_for = windows[draw(4)];
  job.layout.recompute = draw(3) == 0 ? "full" : "none";
  return job;
}

TEST(ScheduleGridTest, EveryScheduleLearnsTheSame) {
  const int points = NumPoints(320);
  References references;
  Draw draw;
  for (int i = 0; i < points; ++i) {
    const JobSpec job = Point(i, draw);
    SCOPED_TRACE(absl::StrCat("point ", i, ": ", LayoutText(job.layout), ", ",
                              *job.layout.chunks_per_stage, " chunks, batch ",
                              job.global_batch_size, ", ", job.model.num_layers, " layers"));
    const std::vector<StepBits>& reference = references.Of(job);
    ASSERT_EQ(reference.size(), static_cast<size_t>(kSteps));
    const std::vector<StepBits> bits = Train(job);
    ASSERT_EQ(bits.size(), reference.size());
    for (size_t step = 0; step < bits.size(); ++step) {
      ASSERT_EQ(bits[step].loss, reference[step].loss) << "step " << step + 1;
      ASSERT_EQ(bits[step].gradient_norm, reference[step].gradient_norm) << "step " << step + 1;
      ASSERT_EQ(bits[step].parameter_hash, reference[step].parameter_hash) << "step " << step + 1;
    }
  }
}

TEST(ScheduleGridTest, ExactNumericsGiveTheBitsOfOneRankInEveryLayout) {
  const int points = NumPoints(160);
  Oracles oracles;
  Draw draw;
  for (int i = 0; i < points; ++i) {
    JobSpec job = Point(2 * i + i / 160, draw);
    job.numerics = Numerics::kExact;
    job.layout.micro_batch_size = 3;  // the last micro-batch is short in two of three batches
    const int replicas = 1 + draw(5);
    job.layout.replicas = replicas;
    job.layout.zero = replicas == 1 ? 0 : *job.layout.zero;
    job.global_batch_size = 1 + draw(14);  // few, so that oracles are shared
    SCOPED_TRACE(absl::StrCat("point ", i, ": ", LayoutText(job.layout), ", ",
                              *job.layout.chunks_per_stage, " chunks, batch ",
                              job.global_batch_size, ", ", job.model.num_layers, " layers"));
    const std::vector<StepBits>& oracle = oracles.Of(job);
    ASSERT_EQ(oracle.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(Train(job), oracle);
  }
}

// And one stage with several replicas and windows learns what one rank alone learns.
TEST(ScheduleGridTest, TheReferencesLearnWhatOneRankLearns) {
  for (Architecture architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    JobSpec job = ToyJob(architecture);
    job.layout.micro_batch_size = 1;
    const std::vector<StepBits> oracle = Train(job);
    for (int replicas : {2, 3}) {
      for (int reduce_every : {kAll, 1, 2, 3}) {
        job.layout.replicas = replicas;
        job.layout.reduce_every = reduce_every;
        const std::vector<StepBits> bits = Train(job);
        ASSERT_EQ(bits.size(), oracle.size());
        EXPECT_EQ(bits[0].loss, oracle[0].loss);
        const auto loss = std::bit_cast<double>(bits[1].loss);
        EXPECT_NEAR(loss, std::bit_cast<double>(oracle[1].loss), 1e-5 * loss);
      }
    }
  }
}

}  // namespace
}  // namespace esteira
