#include "worker/engine/parameter_hash.h"

#include <algorithm>
#include <bit>

#include "common/base/hash.h"

namespace esteira {

uint64_t HashParameters(const UnitSpec& unit, const Range& range, const FlatPart& master) {
  uint64_t sum = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const uint64_t name = HashName(parameter.name);
    const Range part = {std::max(range.begin, parameter.offset),
                        std::min(range.end, parameter.offset + parameter.elements)};
    if (part.size() <= 0) continue;
    const float* values = master.Elements(part).as<float>();
    for (int64_t i = 0; i < part.size(); ++i) {
      const auto index = static_cast<uint64_t>(part.begin + i - parameter.offset);
      sum += Mix64(Mix64(name ^ Mix64(index)) ^ std::bit_cast<uint32_t>(values[i]));
    }
  }
  return sum;
}

}  // namespace esteira
