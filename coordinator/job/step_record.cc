#include "coordinator/job/step_record.h"

#include <bit>

#include "common/base/hash.h"

namespace esteira {

std::string BitsOf(double value) { return Hex64(std::bit_cast<uint64_t>(value)); }

}  // namespace esteira
