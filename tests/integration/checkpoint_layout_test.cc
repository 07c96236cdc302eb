// Checkpoints of real engines: whatever the layout, the files hold the states of a layout with one
// stage and ZeRO 0, to the bit.

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "tests/fakes/fake_file_system.h"
#include "tests/worker/engine/local_cluster.h"
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

// The optimizer state in a checkpoint that all ranks write, by its names in the files.
absl::StatusOr<Tensors> WrittenBy(LocalCluster& cluster, const JobSpec& job) {
  FakeFileSystem files;
  RETURN_IF_ERROR(cluster.OnEachRank([&](int rank) {
    CheckpointWriter writer(job, cluster.plan().layout, rank, absl::Seconds(30), files,
                            cluster.transport(rank));
    return writer.Write(2, cluster.engine(rank).updates(), cluster.engine(rank).States()).status();
  }));
  RETURN_IF_ERROR(VerifyCheckpoint(files, "/ckpt/step-00000002"));
  ASSIGN_OR_RETURN(const TensorFolder folder,
                   TensorFolder::OpenOptimizer(files, "/ckpt/step-00000002"));
  Tensors tensors;
  for (const auto& [name, location] : folder.tensors()) {
    std::vector<float>& values = tensors[name];
    values.resize(static_cast<size_t>(location.entry.end - location.entry.begin) / sizeof(float));
    RETURN_IF_ERROR(folder.ReadFp32(location, values));
  }
  return tensors;
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

}  // namespace
}  // namespace esteira
