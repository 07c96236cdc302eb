#include "worker/checkpoint/stage_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/state_stream.h"

namespace esteira {
namespace {

std::vector<TensorEntry> WeightEntries(const std::vector<UnitSpec>& units, ElementType type) {
  std::vector<TensorEntry> entries;
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      entries.push_back({parameter.name, type, parameter.shape});
    }
  }
  PlaceTensors(entries);
  return entries;
}

std::vector<TensorEntry> OptimizerEntries(const std::vector<UnitSpec>& units) {
  std::vector<TensorEntry> entries;
  for (const UnitSpec& unit : units) {
    for (const char* suffix : kStateSuffixes) {
      for (const ParameterSpec& parameter : unit.parameters) {
        entries.push_back(
            {absl::StrCat(parameter.name, suffix), ElementType::kFp32, parameter.shape});
      }
    }
  }
  PlaceTensors(entries);
  return entries;
}

}  // namespace

StageFiles::StageFiles(FileSystem& files, const std::string& folder, int stage, int num_stages,
                       Precision precision, const std::vector<UnitSpec>& units)
    : weight_type_(ComputeType(precision)),
      weights_(files, folder, ShardFileName("model", stage + 1, num_stages),
               WeightEntries(units, weight_type_)),
      optimizer_(files, folder, ShardFileName("optimizer", stage + 1, num_stages),
                 OptimizerEntries(units)) {}

void StageFiles::Append(const UnitSpec& unit, int buffer, int64_t begin,
                        std::span<const float> values) {
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (const ParameterSpec& parameter : unit.parameters) {
    const int64_t first = std::max(begin, parameter.offset);
    const int64_t last = std::min(end, parameter.offset + parameter.elements);
    if (first >= last) continue;
    const auto part =
        values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first));
    if (buffer == 0) weights_.Append(part, weight_type_);
    optimizer_.Append(part, ElementType::kFp32);
  }
}

RankOutcome StageFiles::Finish() {
  RankOutcome outcome;
  for (TensorFile* file : {&weights_, &optimizer_}) {
    absl::StatusOr<ManifestFile> written = file->Finish();
    if (written.ok()) {
      outcome.files.push_back(*std::move(written));
    } else if (outcome.status.ok()) {
      outcome.status = written.status();
    }
  }
  return outcome;
}

}  // namespace esteira
