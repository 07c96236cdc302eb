// Checkpoints of real engines: whatever the layout, the files hold the states of a layout with one
// stage and ZeRO 0, to the bit; and any layout goes on from them as the run that never stopped.

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <optional>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/worker/engine/local_cluster.h"
#include "worker/checkpoint/resume_point.h"
#include "worker/checkpoint/state_source.h"
#include "worker/checkpoint/writer.h"

namespace esteira {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

JobSpec JobOf(Architecture architecture, int64_t hidden) {
  JobSpec job = ToyJob(architecture);
  job.model.hidden_size = hidden;
  job.model.num_heads = 2;
  job.model.num_kv_heads = architecture == Architecture::kLlama ? 1 : 2;
  job.model.intermediate_size = hidden * 5 / 2;
  job.model.vocab_size = 37;
  job.train = {{"tokens.bin", 1}};
  job.checkpoint_directory = "/ckpt";
  return job;
}

absl::Status Train(LocalCluster& cluster, const JobSpec& job) {
  for (int64_t step = 1; step <= 2; ++step) {
    RETURN_IF_ERROR(cluster.Step(step, ToySamples(job)).status());
  }
  return absl::OkStatus();
}

// All ranks write a checkpoint of `step`.
absl::Status Write(LocalCluster& cluster, const JobSpec& job, int64_t step, FileSystem& files) {
  return cluster.OnEachRank([&](int rank) {
    CheckpointWriter writer(job, cluster.plan().layout, {}, rank, absl::Seconds(30), files,
                            cluster.transport(rank));
    return writer.Write(step, cluster.engine(rank).updates(), cluster.engine(rank).States())
        .status();
  });
}

// The optimizer state in a checkpoint, by its names in the files.
absl::StatusOr<Tensors> ReadTensors(FileSystem& files, const std::string& path) {
  RETURN_IF_ERROR(VerifyCheckpoint(files, path));
  ASSIGN_OR_RETURN(const TensorFolder folder, TensorFolder::OpenOptimizer(files, path));
  Tensors tensors;
  for (const auto& [name, location] : folder.tensors()) {
    std::vector<float>& values = tensors[name];
    values.resize(static_cast<size_t>(location.entry.end - location.entry.begin) / sizeof(float));
    RETURN_IF_ERROR(folder.ReadFp32(location, values));
  }
  return tensors;
}

absl::StatusOr<Tensors> WrittenBy(LocalCluster& cluster, const JobSpec& job) {
  FakeFileSystem files;
  RETURN_IF_ERROR(Write(cluster, job, 2, files));
  return ReadTensors(files, "/ckpt/step-00000002");
}

// A cluster in the job's layout that goes on from the newest checkpoint in `files`.
absl::StatusOr<std::unique_ptr<LocalCluster>> Resume(const JobSpec& job, FileSystem& files,
                                                     int64_t expected_step) {
  ASSIGN_OR_RETURN(std::unique_ptr<LocalCluster> cluster, LocalCluster::Make(job, {}));
  RETURN_IF_ERROR(cluster->OnEachRank([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<ResumePoint> point,
                     FindResumePoint(job, cluster->plan().layout.micro_batch_size, {}, files,
                                     cluster->transport(rank), absl::Seconds(30)));
    if (!point || point->state.step != expected_step) return absl::NotFoundError("another step");
    ASSIGN_OR_RETURN(const StateSource source, OpenStateSource(files, point->folder, job.model));
    return cluster->engine(rank).Restore(point->state.updates, source);
  }));
  return cluster;
}

// The same, put together from the memory of all ranks.
Tensors HeldBy(LocalCluster& cluster, const JobSpec& job) {
  const std::vector<UnitSpec> units = MakeUnits(job.model);
  std::map<std::pair<int, int>, std::vector<float>> buffers;  // of (unit, buffer)
  for (int rank = 0; rank < cluster.num_ranks(); ++rank) {
    for (const UnitState& state : cluster.engine(rank).States()) {
      const std::span<float> parts[] = {state.master, state.m, state.v};
      for (int buffer = 0; buffer < 3; ++buffer) {
        std::vector<float>& whole = buffers[{state.unit, buffer}];
        whole.resize(static_cast<size_t>(units[static_cast<size_t>(state.unit)].flat_elements));
        std::copy(parts[buffer].begin(), parts[buffer].end(), whole.begin() + state.begin);
      }
    }
  }
  const char* suffixes[] = {".master", ".exp_avg", ".exp_avg_sq"};
  Tensors tensors;
  for (const auto& [key, whole] : buffers) {
    for (const ParameterSpec& parameter : units[static_cast<size_t>(key.first)].parameters) {
      const auto begin = whole.begin() + parameter.offset;
      tensors[absl::StrCat(parameter.name, suffixes[key.second])].assign(
          begin, begin + parameter.elements);
    }
  }
  return tensors;
}

void ExpectSameBits(const Tensors& tensors, const Tensors& expected) {
  ASSERT_EQ(tensors.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(tensors.count(name), 1u) << name;
    const std::vector<float>& written = tensors.at(name);
    ASSERT_EQ(written.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(written[i]), std::bit_cast<uint32_t>(values[i]))
          << name << " " << i;
    }
  }
}

class CheckpointLayoutTest : public testing::TestWithParam<std::tuple<Architecture, int64_t>> {
 protected:
  // Before the first step all layouts hold what one rank alone holds; after it, what all layouts
  // with as many replicas hold.
  static void Check(const JobSpec& job, const Tensors& initial, const Tensors& trained) {
    auto cluster = LocalCluster::Make(job, {});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    auto written = WrittenBy(**cluster, job);
    ASSERT_TRUE(written.ok()) << written.status();
    ExpectSameBits(*written, initial);
    const absl::Status status = Train(**cluster, job);
    ASSERT_TRUE(status.ok()) << status;
    written = WrittenBy(**cluster, job);
    ASSERT_TRUE(written.ok()) << written.status();
    ExpectSameBits(*written, trained);
  }
};

TEST_P(CheckpointLayoutTest, TheFilesHoldTheSameStates) {
  JobSpec job = JobOf(std::get<0>(GetParam()), std::get<1>(GetParam()));
  auto alone = LocalCluster::Make(job, {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  const Tensors initial = HeldBy(**alone, job);
  for (int replicas = 2; replicas <= 4; ++replicas) {
    job.layout.replicas = replicas;
    job.layout.stages = 1;
    job.layout.zero = 0;
    auto reference = LocalCluster::Make(job, {});
    ASSERT_TRUE(reference.ok()) << reference.status();
    ASSERT_TRUE(Train(**reference, job).ok());
    const Tensors trained = HeldBy(**reference, job);
    for (int stages = 1; stages <= 2; ++stages) {
      for (int zero = 0; zero <= 3; ++zero) {
        job.layout.stages = stages;
        job.layout.zero = zero;
        SCOPED_TRACE(LayoutText(job.layout));
        Check(job, initial, trained);
      }
    }
  }
}

// 16 divides by much; 24 and 36 leave the last shards short, or empty.
INSTANTIATE_TEST_SUITE_P(Models, CheckpointLayoutTest,
                         testing::Combine(testing::Values(Architecture::kGpt2,
                                                          Architecture::kLlama),
                                          testing::Values<int64_t>(16, 24, 36)));

// What a step and the state after it are, to the bit.
struct StepBits {
  uint64_t loss, norm, learning_rate, validation, hash;
  bool operator==(const StepBits&) const = default;
};
std::ostream& operator<<(std::ostream& out, const StepBits& bits) {
  return out << std::hex << bits.loss << " " << bits.norm << " " << bits.learning_rate << " "
             << bits.validation << " " << bits.hash << std::dec;
}

absl::StatusOr<StepBits> StepOf(LocalCluster& cluster, const JobSpec& job, int64_t step) {
  ASSIGN_OR_RETURN(const ClusterStep done, cluster.Step(step, ToySamples(job)));
  ASSIGN_OR_RETURN(const double validation, cluster.Evaluate(1, ToySamples(job)));
  return StepBits{std::bit_cast<uint64_t>(done.report.loss),
                  std::bit_cast<uint64_t>(done.report.gradient_norm),
                  std::bit_cast<uint64_t>(done.report.learning_rate),
                  std::bit_cast<uint64_t>(validation), done.parameter_hash};
}

struct LayoutOf {
  int stages, replicas, zero;
  const char* schedule = "1f1b";
  int chunks = 1;
};

JobSpec In(JobSpec job, const LayoutOf& layout) {
  job.layout.stages = layout.stages;
  job.layout.replicas = layout.replicas;
  job.layout.zero = layout.zero;
  job.layout.schedule = layout.schedule;
  job.layout.chunks_per_stage = layout.chunks;
  return job;
}

// Tied and not, in both precisions; layers for four stages or two of two chunks; no multiple of
// anything.
JobSpec ResumedJob(Architecture architecture, Precision precision) {
  JobSpec job = JobOf(architecture, 20);
  job.model.num_layers = 5;
  job.precision = precision;
  return job;
}

class ResumeTest : public testing::TestWithParam<std::tuple<Architecture, Precision>> {
 protected:
  JobSpec job_ = ResumedJob(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

// Through layout after layout the states stay what they are, to the bit; and each layout can train.
TEST_P(ResumeTest, AnyLayoutLoadsAnyCheckpoint) {
  const LayoutOf kChain[] = {{2, 2, 3},
                             {4, 1, 1},
                             {1, 3, 0},
                             {2, 2, 3, "interleaved", 2},
                             {2, 1, 2, "zb_v", 2},
                             {1, 5, 3},
                             {2, 3, 1, "dualpipe_v", 2},
                             {3, 2, 2, "zb_h1"},
                             {2, 2, 3}};
  FakeFileSystem files;
  int64_t step = 0;
  Tensors held;
  int64_t updates = 0;
  for (const LayoutOf& layout : kChain) {
    const JobSpec job = In(job_, layout);
    SCOPED_TRACE(LayoutText(job.layout));
    auto cluster = step == 0 ? LocalCluster::Make(job, {}) : Resume(job, files, step);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    if (step > 0) {
      ExpectSameBits(HeldBy(**cluster, job), held);
      for (int rank = 0; rank < (*cluster)->num_ranks(); ++rank) {
        ASSERT_EQ((*cluster)->engine(rank).updates(), updates);
      }
    }
    ++step;
    ASSERT_TRUE((*cluster)->Step(step, ToySamples(job)).ok());
    ASSERT_TRUE(Write(**cluster, job, step, files).ok());
    held = HeldBy(**cluster, job);
    updates = (*cluster)->engine(0).updates();
    const auto written = ReadTensors(files, absl::StrCat("/ckpt/", StepFolderName(step)));
    ASSERT_TRUE(written.ok()) << written.status();
    ExpectSameBits(*written, held);
  }
}

// With as many replicas, whatever else differs: loss, norm, learning rate, validation and the hash
// of all parameters of the steps after are those of the run that never stopped.
TEST_P(ResumeTest, GoesOnAsIfItHadNeverStopped) {
  constexpr int64_t kStop = 3;
  constexpr int64_t kSteps = 5;
  for (const int replicas : {1, 2, 3}) {
    const JobSpec first = In(job_, {2, replicas, 2});
    auto unbroken = LocalCluster::Make(first, {});
    ASSERT_TRUE(unbroken.ok()) << unbroken.status();
    std::vector<StepBits> expected;
    FakeFileSystem files;
    for (int64_t step = 1; step <= kSteps; ++step) {
      const auto bits = StepOf(**unbroken, first, step);
      ASSERT_TRUE(bits.ok()) << bits.status();
      expected.push_back(*bits);
      if (step == kStop) {
        ASSERT_TRUE(Write(**unbroken, first, step, files).ok());
      }
    }
    const LayoutOf kLayouts[] = {{2, replicas, 2},
                                 {1, replicas, 0},
                                 {4, replicas, 1, "gpipe"},
                                 {3, replicas, 3, "zb_h1"},
                                 {2, replicas, 3, "interleaved", 2},
                                 {2, replicas, 0, "v_half", 2}};
    for (const LayoutOf& layout : kLayouts) {
      const JobSpec job = In(job_, layout);
      SCOPED_TRACE(LayoutText(job.layout));
      auto cluster = Resume(job, files, kStop);
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      for (int64_t step = kStop + 1; step <= kSteps; ++step) {
        const auto bits = StepOf(**cluster, job, step);
        ASSERT_TRUE(bits.ok()) << bits.status();
        ASSERT_EQ(*bits, expected[static_cast<size_t>(step - 1)]) << "step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ResumeTest,
                         testing::Combine(testing::Values(Architecture::kGpt2,
                                                          Architecture::kLlama),
                                          testing::Values(Precision::kFp32, Precision::kBf16)));

// What a damaged read leaves is not trained on.
TEST(ResumeFailureTest, AStateThatCannotBeReadFailsTheEngine) {
  const JobSpec job = ResumedJob(Architecture::kGpt2, Precision::kFp32);
  auto cluster = LocalCluster::Make(job, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int failing = 0; failing < 3; ++failing) {
    const absl::Status status = (*cluster)->engine(0).Restore(
        4, [&](int, int buffer, int64_t, std::span<float>) -> absl::Status {
          return buffer == failing ? absl::DataLossError("torn") : absl::OkStatus();
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << failing;
  }
}

}  // namespace
}  // namespace esteira
