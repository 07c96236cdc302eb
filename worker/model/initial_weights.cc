#include <algorithm>

#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/plan/shard_map.h"
#include "worker/model/unit_compute.h"

namespace esteira {
namespace {

float InitialValue(const ParameterSpec& parameter, uint64_t seed, uint64_t stream, int64_t index) {
  switch (parameter.init) {
    case Init::kNormal:
      return static_cast<float>(parameter.init_std *
                                RandomNormal(seed, stream, static_cast<uint64_t>(index)));
    case Init::kZeros: return 0;
    case Init::kOnes: return 1;
  }
  return 0;
}

}  // namespace

void InitialWeights(const UnitSpec& unit, uint64_t seed, const Range& range,
                    std::span<float> master) {
  CHECK(static_cast<int64_t>(master.size()) == range.size());
  std::fill(master.begin(), master.end(), 0.0F);
  for (const ParameterSpec& parameter : unit.parameters) {
    const uint64_t stream = HashName(parameter.name);
    const int64_t begin = std::max(range.begin, parameter.offset);
    const int64_t end = std::min(range.end, parameter.offset + parameter.elements);
    for (int64_t element = begin; element < end; ++element) {
      master[static_cast<size_t>(element - range.begin)] =
          InitialValue(parameter, seed, stream, element - parameter.offset);
    }
  }
}

}  // namespace esteira
