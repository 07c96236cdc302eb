#include "worker/checkpoint/state_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"

namespace esteira {
namespace {

absl::Status ReadRange(const TensorFolder& tensors, const UnitSpec& unit, const char* suffix,
                       int64_t begin, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (const ParameterSpec& parameter : unit.parameters) {
    const int64_t first = std::max(begin, parameter.offset);
    const int64_t last = std::min(end, parameter.offset + parameter.elements);
    if (first >= last) continue;
    ASSIGN_OR_RETURN(const TensorFolder::Location location,
                     tensors.Find(absl::StrCat(parameter.name, suffix), parameter.shape));
    RETURN_IF_ERROR(tensors.ReadFp32(
        location,
        values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)),
        first - parameter.offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StateSource> OpenStateSource(FileSystem& files, const std::string& folder,
                                            const ModelSpec& model) {
  ASSIGN_OR_RETURN(TensorFolder tensors, TensorFolder::OpenOptimizer(files, folder));
  return [tensors = std::move(tensors), units = MakeUnits(model)](
             int unit, int buffer, int64_t begin, std::span<float> values) {
    return ReadRange(tensors, units[static_cast<size_t>(unit)],
                     kStateSuffixes[static_cast<size_t>(buffer)], begin, values);
  };
}

}  // namespace esteira
