#include "common/plan/plan.h"

namespace esteira {

Placement PlacementOf(int zero) {
  return {.whole_parameters = zero < 3, .whole_sums = zero < 2, .whole_states = zero < 1};
}

}  // namespace esteira
