#include "tests/worker/inference/toy_checkpoint.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "worker/checkpoint/writer.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {
namespace {

// The weights of a unit: norm weights around one, everything else around zero.
std::vector<float> Weights(const UnitSpec& unit) {
  std::vector<float> flat(static_cast<size_t>(ShardMap(unit.flat_elements, 1).padded_elements()));
  for (const ParameterSpec& parameter : unit.parameters) {
    const uint64_t stream = HashName(parameter.name);
    const double mean = parameter.init == Init::kOnes ? 1 : 0;
    for (int64_t i = 0; i < parameter.elements; ++i) {
      flat[static_cast<size_t>(parameter.offset + i)] =
          static_cast<float>(mean + 0.2 * RandomNormal(1, stream, static_cast<uint64_t>(i)));
    }
  }
  return flat;
}

std::string Text() {
  std::string text;
  for (uint64_t i = 0; i < 401; ++i) text += static_cast<char>(RandomBits(2, 0, i) % 256);
  return text;
}

}  // namespace

const std::vector<std::string>& ToyNames() {
  static const std::vector<std::string> kNames = {"gpt2", "gpt2_untied", "llama", "llama_tied",
                                                  "llama_bf16"};
  return kNames;
}

JobSpec ToyJob(const std::string& name, const std::string& directory) {
  JobSpec job;
  const bool gpt2 = absl::StartsWith(name, "gpt2");
  const bool tied = name == "gpt2" || name == "llama_tied";
  job.model = {gpt2 ? Architecture::kGpt2 : Architecture::kLlama,
               3,
               48,
               4,
               gpt2 ? 4 : 2,
               100,
               259,
               32,
               tied,
               1e-5,
               5000};
  job.precision = name == "llama_bf16" ? Precision::kBf16 : Precision::kFp32;
  job.train = {{"data.txt", 1}};
  job.sequence_length = 20;
  job.checkpoint_directory = directory;
  return job;
}

absl::StatusOr<std::string> WriteToyCheckpoint(const std::string& name,
                                               const std::string& directory) {
  const JobSpec job = ToyJob(name, directory);
  std::vector<std::vector<float>> memory;
  std::vector<UnitState> states;
  const std::vector<UnitSpec> units = MakeUnits(job.model);
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    const UnitSpec& spec = units[static_cast<size_t>(unit)];
    if (spec.owner >= 0 || spec.flat_elements == 0) continue;
    memory.push_back(Weights(spec));
    const std::span<float> weights(memory.back());
    states.push_back({unit, 0, static_cast<int64_t>(weights.size()), weights, weights, weights});
  }
  RealFileSystem files;
  const auto transports = MakeInprocTransports(1);
  CheckpointWriter writer(job, Layout{}, {}, 0, absl::Minutes(1), files, *transports[0]);
  ASSIGN_OR_RETURN(const CheckpointResult result, writer.Write(1, 1, std::move(states)));
  RETURN_IF_ERROR(WriteFileAtomically(files, absl::StrCat(directory, "/data.txt"), Text()));
  return result.path;
}

}  // namespace esteira
