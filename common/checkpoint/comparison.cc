#include "common/checkpoint/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;

using Location = TensorFolder::Location;

void CompareValues(std::span<const float> a, std::span<const float> b, TensorComparison& result) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++result.num_different;
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // Once a NaN, always a NaN.
    if (std::isnan(result.max_difference)) continue;
    if (!(difference <= result.max_difference)) result.max_difference = difference;
  }
}

absl::StatusOr<TensorComparison> CompareTwo(const TensorFolder& folder_a, const Location& a,
                                            const TensorFolder& folder_b, const Location& b) {
  TensorComparison result;
  result.name = a.entry.name;
  result.elements = a.entry.elements();
  if (a.entry.shape != b.entry.shape) {
    result.verdict = TensorVerdict::kShape;
    return result;
  }
  std::vector<float> piece_a, piece_b;
  for (int64_t first = 0; first < result.elements; first += kPieceElements) {
    const auto size = static_cast<size_t>(std::min(kPieceElements, result.elements - first));
    piece_a.resize(size);
    piece_b.resize(size);
    RETURN_IF_ERROR(folder_a.ReadFp32(a, piece_a, first));
    RETURN_IF_ERROR(folder_b.ReadFp32(b, piece_b, first));
    CompareValues(piece_a, piece_b, result);
  }
  if (result.num_different > 0) {
    result.verdict = TensorVerdict::kValues;
  } else if (a.entry.type != b.entry.type) {
    result.verdict = TensorVerdict::kType;
  }
  return result;
}

TensorComparison OnlyIn(const Location& location, TensorVerdict verdict) {
  return {location.entry.name, verdict, location.entry.elements(), 0, 0};
}

}  // namespace

absl::StatusOr<std::vector<TensorComparison>> CompareTensors(const TensorFolder& a,
                                                             const TensorFolder& b) {
  std::vector<TensorComparison> results;
  for (const auto& [name, location] : a.tensors()) {
    const auto found = b.tensors().find(name);
    if (found == b.tensors().end()) {
      results.push_back(OnlyIn(location, TensorVerdict::kOnlyInA));
      continue;
    }
    ASSIGN_OR_RETURN(TensorComparison result, CompareTwo(a, location, b, found->second));
    results.push_back(std::move(result));
  }
  for (const auto& [name, location] : b.tensors()) {
    if (a.tensors().count(name) == 0) results.push_back(OnlyIn(location, TensorVerdict::kOnlyInB));
  }
  std::sort(results.begin(), results.end(),
            [](const TensorComparison& x, const TensorComparison& y) { return x.name < y.name; });
  return results;
}

absl::StatusOr<std::vector<TensorComparison>> CompareCheckpoints(FileSystem& files,
                                                                 const std::string& a,
                                                                 const std::string& b,
                                                                 bool weights_only) {
  ASSIGN_OR_RETURN(const std::string folder_a, FindModelFolder(files, a));
  ASSIGN_OR_RETURN(const std::string folder_b, FindModelFolder(files, b));
  ASSIGN_OR_RETURN(const TensorFolder weights_a, TensorFolder::OpenModel(files, folder_a));
  ASSIGN_OR_RETURN(const TensorFolder weights_b, TensorFolder::OpenModel(files, folder_b));
  ASSIGN_OR_RETURN(std::vector<TensorComparison> results, CompareTensors(weights_a, weights_b));
  if (weights_only) return results;
  ASSIGN_OR_RETURN(const TensorFolder state_a, TensorFolder::OpenOptimizer(files, folder_a));
  ASSIGN_OR_RETURN(const TensorFolder state_b, TensorFolder::OpenOptimizer(files, folder_b));
  ASSIGN_OR_RETURN(std::vector<TensorComparison> states, CompareTensors(state_a, state_b));
  results.insert(results.end(), std::make_move_iterator(states.begin()),
                 std::make_move_iterator(states.end()));
  return results;
}

}  // namespace esteira
