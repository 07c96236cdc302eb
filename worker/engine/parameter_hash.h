#pragma once

#include <cstdint>

#include "common/plan/model_spec.h"
#include "common/plan/shard_map.h"
#include "worker/engine/memory.h"

namespace esteira {

// The sum, modulo 2^64, of a hash of (parameter name, index in the parameter, fp32 bits) over the
// elements `range` of a unit's flat buffer. A sum over elements that each count once, so it does
// not depend on the layout; gaps take no part.
uint64_t HashParameters(const UnitSpec& unit, const Range& range, const FlatPart& master);

}  // namespace esteira
